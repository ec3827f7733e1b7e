"""Lower the attentions that were marked when a network was traced, and attend in blocks of queries in long texts.

A marked attention is one node: queries [batch, heads, s, d], keys and values [batch, groups, s, d] before they are
copied for the heads that share them, and the padding [batch, s]; the scale of the scores and the window are attributes.
Up to `SHORT` tokens a graph computes all scores at once. Longer texts take a Scan over blocks of queries, so that no
matrix of tokens times tokens is held. Keys that no query of a block can see are not read: those outside a window, and
those after the block in a causal network. Masks are made inside the block. Keys and values that several heads share
are not copied. A row of weights is computed whole, so that the result differs only in the order of sums (as in Rabe &
Staats 2021, "Self-attention does not need O(n^2) memory", section 2, without its division of the keys).

Where every token sees all others, and a text has more than `ALONE_TOKENS` tokens and no padding, as none has that runs
alone, a block is onnxruntime's MultiHeadAttention. Shorter texts never are: their vectors would have other last bits
in a batch that is padded, and other ones again once they are rounded to int8.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from whiten_export.graph.build import Nodes, bias_of, floats, is_linear, linear_users, weights_of, width_of
from whiten_runtime.bundle.manifest import SHORT, TextMemory
from whiten_runtime.inference.batching import ALONE_TOKENS

DOMAIN, KIND = "whiten.attention", "Attention"
"""Domain and name of the operator that marks an attention."""

CONTRIB = "com.microsoft"
"""Domain of onnxruntime's own operators."""

ALL = -1
"""Number of tokens of a window that has no end."""

BLOCK = 128
"""Number of queries of a block."""

FUSED_BLOCK = 512
"""Number of queries of a block of onnxruntime's MultiHeadAttention.

Without a mask, it holds the scores of a tile, in a size by the processor's caches; where it does not know these, those
of the block.
"""

HEADS_FIRST = (0, 2, 1, 3)
"""Permutation between [batch, sequence, heads, width] and [batch, heads, sequence, width]."""

_LOWEST = float(np.finfo(np.float32).min)
"""Number added to the score of a token that is not seen. It is finite, so that queries of padding are not NaN."""


@dataclass(frozen=True)
class Window:
    """Says which tokens a real token sees: real ones up to `left` before it and `right` after it; None for all."""

    left: int | None
    right: int | None  # 0 in a causal network

    @property
    def all(self) -> bool:
        """Return whether every real token sees all real tokens."""
        return self.left is None and self.right is None


@dataclass(frozen=True)
class Attention:
    """Describes a marked attention."""

    node: ir.Node
    queries: ir.Value  # [batch, heads, sequence, d]
    keys: ir.Value  # [batch, groups, sequence, d]
    values: ir.Value  # [batch, groups, sequence, width]
    padding: ir.Value  # true for real tokens, [batch, sequence]
    scale: float
    window: Window
    heads: int
    groups: int
    depth: int  # of queries and keys: d
    width: int  # of values

    @property
    def copies(self) -> int:
        """Return the number of heads that share a group of keys and values."""
        return self.heads // self.groups


def attentions(model: ir.Model) -> list[Attention]:
    """Return the marked attentions of a graph, in its order."""
    return [_attention(node) for node in model.graph if node.domain == DOMAIN]


def _attention(node: ir.Node) -> Attention:
    queries, keys, values, padding = (value for value in node.inputs if value is not None)
    left, right = (None if most == ALL else most for most in node.attributes["window"].as_ints())
    scale, sizes = node.attributes["scale"].as_float(), node.attributes["sizes"].as_ints()
    return Attention(node, queries, keys, values, padding, scale, Window(left, right), *sizes)


def lower_attention(model: ir.Model, longest: int) -> int:
    """Compute the marked attentions by standard operators, those of texts of more than `SHORT` tokens in blocks.

    Return the number of attentions that were not marked, whose memory grows with the square of the number of tokens;
    0 if the graph takes no such texts.
    """
    start = _Start(model, longest)
    lowered = attentions(model)
    biases = {(attention.padding, attention.window): start.bias(attention) for attention in lowered}
    for index, attention in enumerate(lowered):
        bias = biases[attention.padding, attention.window]
        nodes = Nodes(model.graph, f"attention.{index}")
        replace_node(model, attention, nodes, _lower(nodes, attention, start, bias))
    start.close()
    if start.fused and any(attention.window.all for attention in lowered):
        model.graph.opset_imports.setdefault(CONTRIB, 1)
    finish(model)
    several = [node for node in model.graph if node.op_type == "Softmax" and _has_several_queries(node.outputs[0])]
    return len(several) if longest > SHORT else 0


def finish(model: ir.Model) -> None:
    """Forget the domain of marked attentions, after the last one is lowered."""
    model.graph.opset_imports.pop(DOMAIN, None)
    model.graph.sort()
    RemoveUnusedNodesPass()(model)


def replace_node(model: ir.Model, attention: Attention, nodes: Nodes, context: ir.Value) -> None:
    """Put nodes in the place of a marked attention, whose result is their `context`."""
    old = attention.node.outputs[0]
    context.shape, name = old.shape, old.name
    model.graph.insert_before(attention.node, nodes.close())
    ir.convenience.replace_all_uses_with(old, floats(context))
    model.graph.remove(attention.node, safe=True)
    context.name = name


def save_lowered(model: ir.Model, outputs: Sequence[ir.Value], path: Path) -> None:
    """Write a graph whose outputs are some of its values, with its attentions lowered for texts of any length.

    It is written into the folder of its weights, which are not copied.
    """
    lowered = model.clone()
    values = {str(value.name): value for node in lowered.graph for value in node.outputs}
    lowered.graph.outputs[:] = [values[str(output.name)] for output in outputs]
    lower_attention(lowered, SHORT)
    ir.save(lowered, path)


def _has_several_queries(weights: ir.Value) -> bool:
    """Return whether a softmax is that of an attention, [batch, heads, queries, keys]."""
    return weights.shape is None or (len(weights.shape) == 4 and weights.shape[2] != 1)


class _Start:
    """Adds values that all attentions share at the start of a graph."""

    def __init__(self, model: ir.Model, longest: int) -> None:
        self.divided, self.fused = longest > SHORT, longest > ALONE_TOKENS
        self.nodes = Nodes(model.graph, "attention.start")
        self._graph = model.graph
        self._ids = next((value for value in model.graph.inputs if value.name == "input_ids"), model.graph.inputs[0])
        self._rows: dict[ir.Value, ir.Value] = {}
        self._whole: dict[ir.Value, ir.Value] = {}
        self._long: ir.Value | None = None

    def long(self) -> ir.Value:
        """Add whether the batch has a text of more than `SHORT` tokens."""
        if self._long is None:
            length = self.nodes.op("Squeeze", self.nodes.size(self._ids, 1))
            self._long = self.nodes.op("Greater", length, self.nodes.integer(SHORT))
        return self._long

    def whole(self, padding: ir.Value) -> ir.Value:
        """Add whether a batch has texts of more than `ALONE_TOKENS` tokens, and no padding."""
        if padding not in self._whole:
            nodes = self.nodes
            length = nodes.op("Squeeze", nodes.size(self._ids, 1))
            real = nodes.op("ReduceMin", nodes.op("Cast", padding, to=ir.DataType.INT64.value), keepdims=0)
            all_real = nodes.op("Equal", real, nodes.integer(1))
            self._whole[padding] = nodes.op("And", all_real, nodes.op("Greater", length, nodes.integer(ALONE_TOKENS)))
        return self._whole[padding]

    def row(self, padding: ir.Value) -> ir.Value:
        """Add what hides padding, float32 [batch, 1, 1, sequence]."""
        if padding not in self._rows:
            self._rows[padding] = padding_row(self.nodes, padding)
        return self._rows[padding]

    def bias(self, attention: Attention) -> ir.Value:
        """Add what is added to the scores of a short text: [batch, 1, 1 or sequence, sequence]."""
        row, window = self.row(attention.padding), attention.window
        if window.all:
            return row
        if not self.divided:
            return whole_bias(self.nodes, self._ids, window, row)
        name = f"attention.mask_{window.left}_{window.right}"  # all marks of a network have one padding
        unused, whole = Nodes(self._graph, f"{name}.row"), Nodes(self._graph, f"{name}.whole")
        mask = whole.graph([], [floats(whole_bias(whole, self._ids, window, row))])
        return self.nodes.choose(self.long(), unused.graph([], [floats(unused.op("Identity", row))]), mask)

    def close(self) -> None:
        """Add the nodes to the graph."""
        self._graph.extend(self.nodes.close())


def padding_row(nodes: Nodes, padding: ir.Value) -> ir.Value:
    """Add what hides padding, float32 [batch, 1, 1, sequence]."""
    row = nodes.op("Where", padding, nodes.number(0.0), nodes.number(_LOWEST))
    return floats(nodes.op("Unsqueeze", row, nodes.integers(1, 2)))


def whole_bias(nodes: Nodes, ids: ir.Value, window: Window, row: ir.Value) -> ir.Value:
    """Add what hides padding and all that is outside a window, float32 [batch, 1, sequence, sequence]."""
    length = nodes.op("Squeeze", nodes.size(ids, 1))
    positions = nodes.op("Range", nodes.integer(0), length, nodes.integer(1))
    return floats(_hide(nodes, window, nodes.op("Unsqueeze", positions, nodes.integers(1)), positions, row))


def _hide(nodes: Nodes, window: Window, queries: ir.Value, keys: ir.Value, row: ir.Value) -> ir.Value:
    """Add the mask of a window, given positions [q, 1] and [k], to that of padding [batch, 1, 1, k]."""
    distance = nodes.op("Sub", queries, keys)
    near = []
    if window.left is not None:
        near.append(nodes.op("LessOrEqual", distance, nodes.integer(window.left)))
    if window.right is not None:
        near.append(nodes.op("GreaterOrEqual", distance, nodes.integer(-window.right)))
    both = near[0] if len(near) == 1 else nodes.op("And", *near)
    return nodes.op("Where", both, row, nodes.number(_LOWEST))


def _lower(nodes: Nodes, attention: Attention, start: _Start, bias: ir.Value) -> ir.Value:
    graph = attention.node.graph
    assert isinstance(graph, ir.Graph)
    long, short, fused = (Nodes(graph, f"{nodes.prefix}.{name}") for name in ("long", "short", "fused"))
    merged = merged_operands(fused, attention) if start.fused and attention.window.all else None
    operands = _Operands(attention, attention.queries, turned_keys(nodes, attention.keys), attention.values)
    if not start.divided:
        return _attend(nodes, operands, bias)
    whole = floats(_attend(short, operands, bias))
    blocks = _scan(graph, long, attention, BLOCK, partial(_block, operands, long, start.row(attention.padding)))
    if merged is not None:
        own = _scan(graph, fused, attention, FUSED_BLOCK, partial(_fused_block, attention, merged))
        either = Nodes(graph, f"{nodes.prefix}.either")
        condition = start.whole(attention.padding)
        blocks = either.choose(condition, fused.graph([], [floats(own)]), long.graph([], [floats(blocks)]))
        long = either
    return nodes.choose(start.long(), long.graph([], [floats(blocks)]), short.graph([], [whole]))


def turned_keys(nodes: Nodes, keys: ir.Value) -> ir.Value:
    """Add the keys as [batch, groups, d, sequence], by one Transpose where they are one's result already."""
    turned = producer(keys, "Transpose")
    if turned is not None and _permutation(turned) == HEADS_FIRST:
        return nodes.op("Transpose", turned.inputs[0], perm=[0, 2, 3, 1])
    return nodes.op("Transpose", keys, perm=[0, 1, 3, 2])


@dataclass(frozen=True)
class _Operands:
    """Holds what a block of queries needs."""

    attention: Attention
    queries: ir.Value  # [batch, heads, q, d]
    keys: ir.Value  # [batch, groups, d, k]
    values: ir.Value  # [batch, groups, k, width]
    scaled: bool = False  # whether the queries are


_Block = Callable[[Nodes, ir.Value, ir.Value], ir.Value]
"""Adds the attention of a block of queries, [q, batch, heads, width], from its first to its end, int64 [1]."""


def _attend(nodes: Nodes, operands: _Operands, bias: ir.Value | None) -> ir.Value:
    """Add softmax(c Q K^T + bias) V, [batch, heads, q, width]; heads that share keys are rows of one product.

    Without a bias, the last row of the keys holds what hides padding, and the last column of the queries holds ones.
    """
    queries, attention = operands.queries, operands.attention
    shared = attention.copies > 1
    if shared:
        width = attention.depth + (bias is None)
        queries = nodes.op("Reshape", queries, nodes.integers(0, attention.groups, -1, width))
    scores = nodes.op("MatMul", queries, operands.keys)
    if not operands.scaled:
        scores = _scaled(nodes, attention.scale, scores)
    if bias is not None:
        scores = _masked(nodes, operands, scores, bias)
    context = nodes.op("MatMul", nodes.op("Softmax", scores, axis=-1), operands.values)
    return nodes.op("Reshape", context, nodes.integers(0, attention.heads, -1, attention.width)) if shared else context


def _masked(nodes: Nodes, operands: _Operands, scores: ir.Value, bias: ir.Value) -> ir.Value:
    """Add a bias [batch, 1, 1 or q, k] to scores [batch, groups, copies of q, k]."""
    copies, groups = operands.attention.copies, operands.attention.groups
    if copies == 1:
        return nodes.op("Add", scores, bias)
    columns = nodes.size(operands.keys, 3)
    apart = nodes.op("Concat", nodes.integers(0, groups, copies, -1), columns, axis=0)
    scores = nodes.op("Add", nodes.op("Reshape", scores, apart), nodes.op("Unsqueeze", bias, nodes.integers(1)))
    return nodes.op("Reshape", scores, nodes.op("Concat", nodes.integers(0, groups, -1), columns, axis=0))


def _scaled(nodes: Nodes, scale: float, value: ir.Value) -> ir.Value:
    """Add the scale of an attention to scores, or to the queries."""
    return value if scale == 1 else nodes.op("Mul", value, nodes.number(scale))


def _scan(graph: ir.Graph, nodes: Nodes, attention: Attention, size: int, block: _Block) -> ir.Value:
    """Add a Scan over blocks of so many queries, whose results are joined and cut to the length of the text."""
    body = Nodes(graph, f"{nodes.prefix}.block")
    start = ir.Value(name=f"{body.prefix}.start", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    first = body.op("Unsqueeze", start, body.integers(0))
    turned = block(body, first, body.op("Add", first, body.integers(size)))
    missing = body.op("Sub", body.integers(size), body.size(turned, 0))
    pads = body.op("Concat", body.integers(0, 0, 0, 0), missing, body.integers(0, 0, 0), axis=0)
    padded = floats(body.op("Pad", turned, pads))  # blocks that are joined have one size
    # onnxruntime before 1.24 needs the shape of what a body gives
    padded.shape = ir.Shape([size, "batch_size", attention.heads, attention.width])
    length = nodes.size(attention.queries, 2)
    starts = nodes.op("Range", nodes.integer(0), nodes.op("Squeeze", length), nodes.integer(size))
    blocks = nodes.scan(starts, body.graph([start], [padded]))
    sizes = nodes.op("Concat", nodes.integers(-1), nodes.size(attention.queries, 0), axis=0)
    sizes = nodes.op("Concat", sizes, nodes.integers(attention.heads, attention.width), axis=0)
    joined = nodes.op("Slice", nodes.op("Reshape", blocks, sizes), nodes.integers(0), length, nodes.integers(0))
    return nodes.op("Transpose", joined, perm=[1, 2, 0, 3])


def _fused_block(
    attention: Attention, merged: tuple[ir.Value, ir.Value, ir.Value], body: Nodes, first: ir.Value, end: ir.Value
) -> ir.Value:
    """Add the attention of a block of queries by onnxruntime's own operator, [q, batch, heads, width]."""
    queries, keys, values = merged
    part = floats(body.op("Slice", queries, first, end, body.integers(1)))
    context = body.op(
        "MultiHeadAttention", part, keys, values, domain=CONTRIB, num_heads=attention.heads, scale=attention.scale
    )
    apart = body.op("Reshape", floats(context), body.integers(0, 0, attention.heads, attention.width))
    return body.op("Transpose", apart, perm=[1, 0, 2, 3])


def _block(operands: _Operands, nodes: Nodes, row: ir.Value, body: Nodes, first: ir.Value, end: ir.Value) -> ir.Value:
    """Add the attention of a block of queries, [q, batch, heads, width].

    Where every token sees all others, the scores of a block are the largest values of a long text, and what is
    multiplied with them or added to them reads all once more. So the queries are scaled, and a row of the keys hides
    padding.
    """
    attention, window = operands.attention, operands.attention.window
    queries = body.op("Slice", operands.queries, first, end, body.integers(2))
    keys, values, bias = operands.keys, operands.values, None
    if window.all:
        queries = _scaled(body, attention.scale, queries)
        rows = nodes.op("Expand", row, nodes.integers(1, attention.groups, 1, 1))
        keys = nodes.op("Concat", keys, rows, axis=2)
        queries = body.op("Pad", queries, body.integers(0, 0, 0, 0, 0, 0, 0, 1), body.number(1.0))
    else:
        least = body.integers(0)
        if window.left is not None:
            least = body.op("Max", body.op("Sub", first, body.integers(window.left)), least)
        most = body.size(row, 3) if window.right is None else body.op("Add", end, body.integers(window.right))
        keys = body.op("Slice", keys, least, most, body.integers(3))
        values = body.op("Slice", values, least, most, body.integers(2))
        bias = body.op("Slice", row, least, most, body.integers(3))
        rows, columns = (
            _positions(body, value, axis, at) for value, axis, at in ((queries, 2, first), (keys, 3, least))
        )
        bias = _hide(body, window, body.op("Unsqueeze", rows, body.integers(1)), columns, bias)
    part = _Operands(attention, queries, keys, values, scaled=window.all)
    return body.op("Transpose", _attend(body, part, bias), perm=[2, 0, 1, 3])


def _positions(nodes: Nodes, value: ir.Value, axis: int, first: ir.Value) -> ir.Value:
    """Add the positions of the tokens of an axis, int64 [n], counted from `first`."""
    count = nodes.op("Squeeze", nodes.size(value, axis))
    return nodes.op("Add", nodes.op("Range", nodes.integer(0), count, nodes.integer(1)), first)


def merged_operands(nodes: Nodes, attention: Attention) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return queries, keys and values as [batch, sequence, heads * d]; keys that heads share are copied."""
    keys, values = _copied(nodes, attention, attention.keys), _copied(nodes, attention, attention.values)
    return _merged(nodes, attention.queries), _merged(nodes, keys), _merged(nodes, values)


def _copied(nodes: Nodes, attention: Attention, value: ir.Value) -> ir.Value:
    """Repeat each group of keys or values [batch, groups, sequence, d] for the heads that share it."""
    if attention.copies == 1:
        return value
    apart = nodes.op("Unsqueeze", value, nodes.integers(2))
    copies = floats(nodes.op("Expand", apart, nodes.integers(1, 1, attention.copies, 1, 1)))
    depth = attention.depth if value is attention.keys else attention.width
    return floats(nodes.op("Reshape", copies, nodes.integers(0, attention.heads, -1, depth)))


def _merged(nodes: Nodes, value: ir.Value) -> ir.Value:
    """Return a value [batch, heads, sequence, d] as [batch, sequence, heads * d]."""
    merged = merged_heads(value)
    if merged is not None and merged.shape is not None and len(merged.shape) == 3:
        return merged
    turned = floats(nodes.op("Transpose", value, perm=HEADS_FIRST))
    return floats(nodes.op("Reshape", turned, nodes.integers(0, 0, -1)))


def query_product(attention: Attention) -> ir.Node | None:
    """Return the product x W that gives the queries, which can take a factor: c (x W) K^T = (x (c W)) K^T."""
    return _head_product(attention.queries)


def value_product(context: ir.Value) -> ir.Node | None:
    """Return the product that gives the values of an attention, whose context is a weighted mean of them.

    The attention is marked, or softmax(...) V.
    """
    if context.is_graph_output() or len(linear_users(context)) < len(list(context.uses())):
        return None
    merged = producer(context, "Reshape")
    turned = producer(merged.inputs[0], "Transpose") if merged is not None else None
    if turned is None or _permutation(turned) != HEADS_FIRST or only_user(turned.outputs[0]) is None:
        return None
    mixed = turned.inputs[0].producer() if turned.inputs[0] is not None else None
    if mixed is None or only_user(mixed.outputs[0]) is None:
        return None
    if mixed.domain != DOMAIN and (mixed.op_type != "MatMul" or producer(mixed.inputs[0], "Softmax") is None):
        return None
    product = _head_product(mixed.inputs[2 if mixed.domain == DOMAIN else 1])
    weight = weights_of(product.inputs[1]) if product is not None else None
    return product if weight is not None and weight.shape[1] == width_of(context) else None


def merged_heads(value: ir.Value | None) -> ir.Value | None:
    """Return x [batch, sequence, heads * d] of Transpose(Reshape(x)), heads first, whose only use this value is."""
    turned = producer(value, "Transpose")
    if turned is None or _permutation(turned) != HEADS_FIRST or only_user(turned.outputs[0]) is None:
        return None
    split = producer(turned.inputs[0], "Reshape")
    return split.inputs[0] if split is not None and only_user(split.outputs[0]) is not None else None


def _head_product(value: ir.Value | None) -> ir.Node | None:
    """Return the product x W whose only use is Transpose(Reshape(x W + b)), heads first: `value`."""
    source = merged_heads(value)
    if source is None or only_user(source) is None:
        return None
    node = source.producer()
    if node is not None and node.op_type == "Add":
        products = [value.producer() for value in node.inputs if value is not None]
        node = next((product for product in products if product is not None and bias_of(product) is node), None)
    return node if node is not None and is_linear(node) else None


def producer(value: ir.Value | None, kind: str) -> ir.Node | None:
    """Return the node that computes a value, if it is of this kind."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == kind else None


def only_user(value: ir.Value) -> ir.Node | None:
    """Return the one node that uses a value; None if there are more, or the graph gives it."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _permutation(node: ir.Node) -> tuple[int, ...]:
    return tuple(node.attributes.get_ints("perm", ()))


_TOKENS, _PAIRS = 1.7, 1.2
"""Factors of what onnxruntime takes over the sum of the values that are alive: blocks are joined and turned, and freed
memory does not always fit the next value. Measured on networks of base size, 2,048 to 8,192 tokens, and rounded up."""


def text_memory(model: ir.Model, longest: int, in_blocks: bool) -> TextMemory:
    """Estimate the memory of a text of up to `longest` tokens, from a graph whose attentions are marked.

    It is that of the values which are alive at the node where they are the most. Values of unknown shape are not
    counted. `in_blocks` says that all attentions will be computed in blocks of queries.
    """
    nodes = list(model.graph)
    last = {value: index for index, node in enumerate(nodes) for value in node.inputs if value is not None}
    alive: list[tuple[int, int, int]] = []
    peak = (0, 0)
    for index, node in enumerate(nodes):
        alive += [(last.get(value, index), *_bytes(value, in_blocks)) for value in node.outputs]
        if node.domain == DOMAIN:
            scores = 2 * 4 * _attention(node).heads  # and what softmax makes of them
            alive.append((index, *((BLOCK * scores, 0) if in_blocks else (0, scores))))
        sums = (sum(value[1] for value in alive), sum(value[2] for value in alive))
        peak = max(peak, sums, key=lambda pair: pair[0] * longest + pair[1] * longest**2)
        alive = [value for value in alive if value[0] > index]
    return TextMemory(token_bytes=round(_TOKENS * peak[0]), pair_bytes=round(_PAIRS * peak[1]))


def _bytes(value: ir.Value, in_blocks: bool) -> tuple[int, int]:
    """Return the bytes of a value for each token, and for each pair of tokens."""
    if value.shape is None or value.dtype is None:
        return 0, 0
    size, axes = int(value.dtype.itemsize), 0
    for axis in value.shape:
        if isinstance(axis, int):
            size *= axis
        elif str(axis) != "batch_size":
            axes += 1
    if axes >= 2:
        return (BLOCK * size, 0) if in_blocks else (0, size)
    return (size, 0) if axes else (0, 0)
