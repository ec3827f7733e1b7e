"""Find the matrix products of a graph, and bring them and residual sums to the forms that later passes look for."""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from whiten_export.graph.builder import OWN, constant
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
    users = {user for activation in _with_shared_weights(source) for user in _with_shared_weights(activation)}
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


def weights_by_result(source: ir.Value) -> dict[str, NDArray[np.float32]]:
    """Return the weights of each product of an activation, float32 [n, m], by the name of the product's result."""
    weights = {str(node.outputs[0].name): weights_of(node.inputs[1]) for node in linear_users(source)}
    return {name: weight for name, weight in weights.items() if weight is not None}


def plain_products(model: ir.Model) -> None:
    """Split Gemm, as of GPT-2, into MatMul and Add, and transpose constant weights, as ALBERT's, now."""
    split_gemms(model)
    _fold_transposes(model)


def split_gemms(model: ir.Model) -> None:
    """Replace Gemm, which takes only matrices, by MatMul and Add."""
    for node in list(model.graph):
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        if node.op_type != "Gemm" or any(attributes.get(name, 1) != 1 for name in ("alpha", "beta")):
            continue
        if attributes.get("transA", 0):
            continue
        tape = Tape()
        weight = node.inputs[1]
        assert weight is not None
        if attributes.get("transB", 0):
            weight = tape.op("Transpose", [weight], {"perm": [1, 0]})
        result = node.outputs[0]
        value = tape.op("MatMul", [node.inputs[0], weight])
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None:  # exporters leave out one of zeros
            value = tape.op("Add", [value, bias])
        value.type, value.shape = result.type, result.shape
        model.graph.insert_before(node, tape.nodes)
        ir.convenience.replace_all_uses_with(result, value)
        model.graph.remove(node, safe=True)


def _fold_transposes(model: ir.Model) -> None:
    """Replace the Transpose of an initialiser by an initialiser; users of the same weights share it."""
    for node in list(model.graph):
        weight = node.inputs[0] if node.op_type == "Transpose" else None
        if weight is None or not weight.is_initializer() or weight.const_value is None:
            continue
        array = weight.const_value.numpy()
        order = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(array.ndim)[::-1]
        turned = np.ascontiguousarray(np.transpose(array, order))
        name = f"{weight.name}.transposed_{'_'.join(map(str, order))}"
        ir.convenience.replace_all_uses_with(node.outputs[0], constant(model.graph, name, turned))
        model.graph.remove(node, safe=True)
    RemoveUnusedNodesPass()(model)


def sum_residuals(model: ir.Model) -> int:
    """Turn every Add whose result is normalised into Sum."""
    changed = 0
    for node in model.graph:
        if node.op_type == "Add" and not node.domain and is_normalized(node.outputs[0]):
            node.op_type = "Sum"
            changed += 1
    return changed


def is_normalized(value: ir.Value) -> bool:
    """Return whether a value enters LayerNormalization, or its mean is subtracted from it, which onnxruntime joins."""
    users = [node for node, index in value.uses() if index == 0]
    kinds = {node.op_type for node in users}
    return any("LayerNormalization" in kind for kind in kinds) or {"ReduceMean", "Sub"} <= kinds
