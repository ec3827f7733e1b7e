"""Find the attentions of a graph, softmax(c Q K^T + masks) V, and the products that give their queries and values."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from whiten_export.graph.products import bias_of, is_linear, linear_users, weights_of, width_of

HEADS_FIRST = (0, 2, 1, 3)
"""Permutation between [batch, sequence, heads, width] and [batch, heads, sequence, width]."""

_LAST_SWAPPED = (0, 1, 3, 2)


@dataclass(frozen=True)
class Attention:
    """Describes one attention. Nothing between its nodes is used by anything else."""

    scores: ir.Node  # MatMul of the queries [b, heads, s, d] and the transposed keys [b, heads, d, s]
    scale: ir.Node | None  # Mul or Div of the scores by a constant
    factor: float  # that constant, or 1 / that of a Div; 1 for none
    masks: tuple[ir.Value, ...]  # what is added to the scores: masks, or biases of positions
    softmax: ir.Node  # Softmax over the keys
    context: ir.Node  # MatMul of the weights and the values [b, heads, s, d]

    @property
    def queries(self) -> ir.Value:
        """Return the queries, [batch, heads, sequence, width]."""
        return _input(self.scores, 0)

    @property
    def keys(self) -> ir.Value:
        """Return the transposed keys, [batch, heads, width, sequence]."""
        return _input(self.scores, 1)

    @property
    def values(self) -> ir.Value:
        """Return the values, [batch, heads, sequence, width]."""
        return _input(self.context, 1)


def attentions(model: ir.Model) -> Iterator[Attention]:
    """Yield the attentions of a graph, in its order."""
    for node in model.graph:
        if node.op_type == "Softmax" and (attention := _attention(node)) is not None:
            yield attention


def _attention(softmax: ir.Node) -> Attention | None:
    """Return the attention of a Softmax; None if it is something else."""
    axis, rank = softmax.attributes.get_int("axis", -1), softmax.outputs[0].shape
    if axis not in (-1, 3) or (rank is not None and len(rank) != 4):
        return None
    context = only_user(softmax.outputs[0])
    if context is None or context.op_type != "MatMul" or context.inputs[0] is not softmax.outputs[0]:
        return None
    masks: list[ir.Value] = []
    scale, factor, value = None, 1.0, _input(softmax, 0)
    while (node := value.producer()) is not None and only_user(value) is not None:
        scaled, number = _scaled(node)
        if node.op_type == "MatMul":
            return Attention(node, scale, factor, tuple(masks), softmax, context)
        if scaled is not None and scale is None:
            scale, factor, value = node, number, scaled
        elif node.op_type == "Add" and scale is None:
            ends = [end for end in node.inputs if end is not None]
            value, mask = ends if _is_scores(ends[0]) else ends[::-1]
            masks.append(mask)
        else:
            return None
    return None


def _is_scores(value: ir.Value) -> bool:
    """Return whether a summand, rather than the other one, is the product of queries and keys."""
    node = value.producer()
    while node is not None and node.op_type in ("Add", "Mul", "Div"):
        scaled, _ = _scaled(node)
        node = (_input(node, 0) if scaled is None else scaled).producer()
    return node is not None and node.op_type == "MatMul"


def query_product(attention: Attention) -> ir.Node | None:
    """Return the product x W that gives the queries, which can take a factor: c (x W) K^T = (x (c W)) K^T."""
    return _head_product(attention.queries)


def value_product(context: ir.Value) -> ir.Node | None:
    """Return the product that gives the values of an attention, whose context is a weighted mean of them."""
    if context.is_graph_output() or len(linear_users(context)) < len(list(context.uses())):
        return None
    merged = producer(context, "Reshape")
    turned = producer(merged.inputs[0], "Transpose") if merged is not None else None
    if turned is None or _permutation(turned) != HEADS_FIRST or only_user(turned.outputs[0]) is None:
        return None
    mixed = producer(turned.inputs[0], "MatMul")
    if mixed is None or only_user(mixed.outputs[0]) is None or producer(mixed.inputs[0], "Softmax") is None:
        return None
    product = _head_product(mixed.inputs[1])
    weight = weights_of(product.inputs[1]) if product is not None else None
    return product if weight is not None and weight.shape[1] == width_of(context) else None


def _head_product(value: ir.Value | None) -> ir.Node | None:
    """Return the product x W whose only use is Transpose(Reshape(x W + b)), heads first: `value`."""
    turned = producer(value, "Transpose")
    if turned is None or _permutation(turned) != HEADS_FIRST or only_user(turned.outputs[0]) is None:
        return None
    split = producer(turned.inputs[0], "Reshape")
    if split is None or only_user(split.outputs[0]) is None:
        return None
    source = split.inputs[0]
    if source is None or only_user(source) is None:
        return None
    node = source.producer()
    if node is not None and node.op_type == "Add":
        products = [value.producer() for value in node.inputs if value is not None]
        node = next((product for product in products if product is not None and bias_of(product) is node), None)
    return node if node is not None and is_linear(node) else None


@dataclass(frozen=True)
class Heads:
    """Describes keys and values without the copies that grouped queries make of them."""

    keys: ir.Value  # transposed keys [b, groups, d, s], or, if `turned` is False, keys [b, groups, s, d]
    values: ir.Value  # values [b, groups, s, d]
    turned: bool  # whether the keys are transposed
    copies: int  # number of heads that share one group of keys and values; 1 for none


def shared_heads(attention: Attention) -> Heads:
    """Return keys and values before they are repeated for each head of a group, as of Qwen and Gemma."""
    swapped = producer(attention.keys, "Transpose")
    if swapped is not None and _permutation(swapped) == _LAST_SWAPPED:
        keys, values = _before_copies(swapped.inputs[0]), _before_copies(attention.values)
        if keys is not None and values is not None and keys[1] == values[1]:
            return Heads(keys[0], values[0], False, keys[1])
    return Heads(attention.keys, attention.values, True, 1)


def _before_copies(value: ir.Value | None) -> tuple[ir.Value, int] | None:
    """Return x [b, groups, s, d] and n of a value that repeats each group of x n times; None for any other."""
    merged = producer(value, "Reshape")
    copied = producer(merged.inputs[0], "Expand") if merged is not None else None
    apart = producer(copied.inputs[0], "Unsqueeze") if copied is not None else None
    if value is None or copied is None or apart is None or apart.inputs[0] is None:
        return None
    groups, heads = size_of(apart.inputs[0], 1), size_of(value, 1)
    shape = copied.outputs[0].shape
    if groups is None or heads is None or shape is None or len(shape) != 5 or shape[2] != heads // groups:
        return None
    return apart.inputs[0], heads // groups


def size_of(value: ir.Value, axis: int) -> int | None:
    """Return the size of an axis of a value with four axes; None if it is not known."""
    size = value.shape[axis] if value.shape is not None and len(value.shape) == 4 else None
    return size if isinstance(size, int) else None


def producer(value: ir.Value | None, kind: str) -> ir.Node | None:
    """Return the node that computes a value, if it is of this kind."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == kind else None


def only_user(value: ir.Value) -> ir.Node | None:
    """Return the one node that uses a value; None if there are more, or the graph gives it."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _permutation(node: ir.Node) -> tuple[int, ...]:
    return tuple(node.attributes.get_ints("perm", ()))


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
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    if tensor is None or tensor.size != 1:
        return None
    number = float(np.asarray(tensor.numpy()).reshape(()))
    return number if number and np.isfinite(number) else None
