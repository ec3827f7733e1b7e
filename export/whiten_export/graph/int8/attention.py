"""Find factors of attentions that can move into the weights before them: of the scores, and of the context."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from whiten_export.graph.int8.linear import bias_of, is_linear, linear_users, weights_of, width_of

_HEADS_FIRST = (0, 2, 1, 3)
"""Permutation between [batch, sequence, heads, width] and [batch, heads, sequence, width]."""


@dataclass(frozen=True)
class ScoreScale:
    """Holds a constant factor of attention scores, and the product that can take it."""

    node: ir.Node  # Mul or Div of the scores by a constant
    scores: ir.Value  # scores before it
    query: ir.Node  # product that gives the queries
    factor: float  # the constant factor


def score_scales(model: ir.Model) -> list[ScoreScale]:
    """Return the constant factors of attention scores that can move into the weights of the queries.

    (x W + b) K^T c = (x (c W) + c b) K^T: one pass over all scores less.
    """
    found = []
    for node in model.graph:
        scores, factor = _scaled(node)
        if scores is None or not _only_use(scores) or (product := _producer(scores, "MatMul")) is None:
            continue
        query = _head_product(product.inputs[0])
        if query is not None:
            found.append(ScoreScale(node, scores, query, factor))
    return found


def value_product(context: ir.Value) -> ir.Node | None:
    """Return the product that gives the values of an attention, channel by channel those of its context.

    The context is then a weighted mean of values over tokens, so that a factor of a channel of the one is a factor of
    the same channel of the other.
    """
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
