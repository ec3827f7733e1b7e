"""Find the products of a graph that int8 replaces: those of activations and constant weights."""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from whiten_export.graph.builder import OWN
from whiten_export.graph.head import MEAN, WEIGHT

SMALL = 1024
"""Number of elements below which an initialiser is left as it is."""


def activations(model: ir.Model) -> list[ir.Value]:
    """Return the values that are multiplied by constant weights, in the order of the graph."""
    return list(dict.fromkeys(node.inputs[0] for node in model.graph if is_linear(node) and node.inputs[0]))


def is_linear(node: ir.Node) -> bool:
    """Return whether a node multiplies an activation by constant weights, float32 [n, m], of the network."""
    weight = weights_of(node.inputs[1]) if node.op_type == "MatMul" else None
    return weight is not None and weight.ndim == 2


def weights_of(value: ir.Value | None) -> NDArray[np.float32] | None:
    """Return a large float32 initialiser of the network, as an array; None for the modules and the whitening."""
    if value is None or not value.is_initializer() or value.const_value is None:
        return None
    if value.name in (MEAN, WEIGHT) or str(value.name).startswith(OWN):
        return None
    if value.const_value.dtype != ir.DataType.FLOAT or value.const_value.size < SMALL:
        return None
    return value.const_value.numpy()


def linear_users(source: ir.Value) -> list[ir.Node]:
    """Return the nodes that multiply an activation by constant weights."""
    return [node for node, index in source.uses() if index == 0 and is_linear(node)]


def shares_weights(source: ir.Value) -> bool:
    """Return whether all weights of an activation are also those of others, which have none of their own, as in ALBERT.

    Such weights are held once: without factors of an activation's channels, and rounded to the nearest. Where only some
    are shared, as DeBERTa's keys with its relative positions, each activation has its own copy.
    """
    users = {user for one in _with_shared_weights(source) for user in _with_shared_weights(one)}
    return len(users) > 1 and all(_all_are_shared(user) for user in users)


def _with_shared_weights(source: ir.Value) -> set[ir.Value]:
    """Return the activations that are multiplied by a weight of this one."""
    weights = [node.inputs[1] for node in linear_users(source)]
    users = [user.inputs[0] for weight in weights if weight is not None for user, index in weight.uses() if index == 1]
    return {value for value in users if value is not None}


def _all_are_shared(source: ir.Value) -> bool:
    users = [[user for user, _ in weight.uses()] for node in linear_users(source) if (weight := node.inputs[1])]
    return all(len({user.inputs[0] for user in sharing}) > 1 for sharing in users)


def bias_of(product: ir.Node) -> ir.Node | None:
    """Return the Add of a constant bias [m] that is the only user of a product; None if there is none."""
    uses = list(product.outputs[0].uses())
    if len(uses) != 1 or uses[0].node.op_type != "Add":
        return None
    node, index = uses[0]
    other = node.inputs[1 - index]
    if other is None or not other.is_initializer() or other.const_value is None:
        return None
    return node if other.const_value.shape.rank() == 1 and other.dtype == ir.DataType.FLOAT else None


def width_of(source: ir.Value) -> int:
    """Return the number of channels of an activation."""
    weight = weights_of(linear_users(source)[0].inputs[1])
    assert weight is not None
    return int(weight.shape[0])


def stacked_weights(source: ir.Value) -> NDArray[np.float32]:
    """Return the weights of all products of an activation side by side, float32 [n, m]."""
    weights = [weights_of(node.inputs[1]) for node in linear_users(source)]
    return np.concatenate([weight for weight in weights if weight is not None], axis=1)
