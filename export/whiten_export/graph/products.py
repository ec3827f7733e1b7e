"""Find the matrix products of a graph, and bring them and residual sums to the forms that later passes look for."""

from dataclasses import dataclass

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


def weights_by_result(source: ir.Value) -> dict[str, NDArray[np.float32]]:
    """Return the weights of each product of an activation, float32 [n, m], by the name of the product's result."""
    weights = {str(node.outputs[0].name): weights_of(node.inputs[1]) for node in linear_users(source)}
    return {name: weight for name, weight in weights.items() if weight is not None}


_HEADS_FIRST = (0, 2, 1, 3)
"""Permutation between [batch, sequence, heads, width] and [batch, heads, sequence, width]."""


@dataclass(frozen=True)
class ScoreScale:
    """Constant factor of attention scores, and the product that can take it."""

    node: ir.Node  # Mul or Div of the scores by a constant
    scores: ir.Value  # scores before it
    query: ir.Node  # product that gives the queries
    factor: float  # the constant factor


def score_scales(model: ir.Model) -> list[ScoreScale]:
    """Return the constant factors c of attention scores that can move into the weights: c (x W) K^T = (x (c W)) K^T."""
    scales = []
    for node in model.graph:
        scores, factor = _scaled(node)
        if scores is None or not _only_use(scores) or (product := _producer(scores, "MatMul")) is None:
            continue
        query = _head_product(product.inputs[0])
        if query is not None:
            scales.append(ScoreScale(node, scores, query, factor))
    return scales


def value_product(context: ir.Value) -> ir.Node | None:
    """Return the product that gives the values of an attention, whose context is a weighted mean of them."""
    if context.is_graph_output() or len(linear_users(context)) < len(list(context.uses())):
        return None
    merged = _producer(context, "Reshape")
    turned = _producer(merged.inputs[0], "Transpose") if merged is not None else None
    if turned is None or _permutation(turned) != _HEADS_FIRST or not _only_use(turned.outputs[0]):
        return None
    mixed = _producer(turned.inputs[0], "MatMul")
    if mixed is None or not _only_use(mixed.outputs[0]) or _producer(mixed.inputs[0], "Softmax") is None:
        return None
    product = _head_product(mixed.inputs[1])
    weight = weights_of(product.inputs[1]) if product is not None else None
    return product if weight is not None and weight.shape[1] == width_of(context) else None


def _head_product(value: ir.Value | None) -> ir.Node | None:
    """Return the product x W whose only use is Transpose(Reshape(x W + b)), heads first: `value`."""
    turned = _producer(value, "Transpose")
    if turned is None or _permutation(turned) != _HEADS_FIRST or not _only_use(turned.outputs[0]):
        return None
    split = _producer(turned.inputs[0], "Reshape")
    if split is None or not _only_use(split.outputs[0]):
        return None
    source = split.inputs[0]
    if source is None or not _only_use(source):
        return None
    node = source.producer()
    if node is not None and node.op_type == "Add":
        products = [value.producer() for value in node.inputs if value is not None]
        node = next((product for product in products if product is not None and bias_of(product) is node), None)
    return node if node is not None and is_linear(node) else None


def _producer(value: ir.Value | None, kind: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == kind else None


def _permutation(node: ir.Node) -> tuple[int, ...]:
    return tuple(node.attributes.get_ints("perm", ()))


def _only_use(value: ir.Value | None) -> bool:
    return value is not None and len(list(value.uses())) == 1 and not value.is_graph_output()


def _scaled(node: ir.Node) -> tuple[ir.Value | None, float]:
    """Return the value x and the number c of x * c, c * x or x / c; (None, 1) for any other node."""
    if node.op_type not in ("Mul", "Div") or len(node.inputs) != 2:
        return None, 1.0
    for value, other in (node.inputs, node.inputs[::-1])[: 1 if node.op_type == "Div" else 2]:
        number = _number(other)
        if number is not None:
            return value, number if node.op_type == "Mul" else 1 / number
    return None, 1.0


def _number(value: ir.Value | None) -> float | None:
    """Return a constant with one element, if it is finite and not 0."""
    constant = value.const_value if value is not None and value.is_initializer() else None
    if constant is None or constant.size != 1:
        return None
    number = float(np.asarray(constant.numpy()).reshape(()))
    return number if number and np.isfinite(number) else None


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
