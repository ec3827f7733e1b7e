"""Compute the attention of long texts in blocks of queries, so that no matrix of tokens times tokens is held.

Up to `SHORT` tokens a graph computes attention as it did. Longer texts take a Scan over blocks of queries. Keys that
no query of a block can see are not read: those outside a window, and those after the block in a causal network. Masks
are made inside the block. Keys and values that several heads share are not copied. A row of weights is computed whole,
so that the result differs only in the order of sums (as in Rabe & Staats 2021, "Self-attention does not need O(n^2)
memory", section 2, without its division of the keys).
"""

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from whiten_export.graph.attention.find import Attention, attentions, shared_heads, size_of
from whiten_export.graph.attention.masks import Visible, visible
from whiten_export.graph.builder import Nodes, floats
from whiten_runtime.bundle.records import SHORT, TextMemory

BLOCK = 128
"""Number of queries of a block."""

_LOWEST = float(np.finfo(np.float32).min)
"""Number added to the score of a token that is not seen. It is finite, so that queries of padding are not NaN."""


def attend_in_blocks(model: ir.Model, longest: int) -> int:
    """Let texts of more than `SHORT` tokens compute attention in blocks, where masks are understood.

    Return the number of attentions that stay as they are, whose memory grows with the square of the number of tokens;
    0 if the graph takes no such texts.
    """
    if longest <= SHORT:
        return 0
    graph = model.graph
    several = [attention for attention in attentions(model) if size_of(attention.queries, 2) != 1]
    divisible = [attention for attention in several if _divisible(attention)]
    masks = dict.fromkeys(attention.masks[0] for attention in divisible)
    understood = {mask: _visible(model, mask, longest) for mask in masks}
    attended = {attention: understood[attention.masks[0]] for attention in divisible}
    every = sum(node.op_type == "Softmax" and size_of(node.outputs[0], 2) != 1 for node in graph)
    start = _Start(graph)
    rows = {seen: start.bias(seen) for seen in dict.fromkeys(attended.values()) if seen is not None}
    graph.insert_before(next(iter(graph)), start.nodes.close())
    replaced = 0
    for attention, seen in attended.items():
        if seen is not None:
            _replace(graph, attention, seen, start, rows[seen], f"attention.{replaced}")
            replaced += 1
    RemoveUnusedNodesPass()(model)
    return every - replaced


def _divisible(attention: Attention) -> bool:
    """Return whether an attention has one mask, and queries of known numbers of heads and width."""
    return len(attention.masks) == 1 and None not in (size_of(attention.queries, axis) for axis in (1, 3))


def _visible(model: ir.Model, mask: ir.Value, longest: int) -> Visible | None:
    """Return what a real token sees, and nothing that does not matter for its vector."""
    seen = visible(model, mask, longest)
    if seen is None or not seen.padding or seen.token:
        return None
    return Visible(seen.left, seen.right)


class _Start:
    """Values that all attentions share, computed at the start of the graph."""

    def __init__(self, graph: ir.Graph) -> None:
        self.nodes = nodes = Nodes(graph, "attention.start")
        self._graph = graph
        inputs = {value.name: value for value in graph.inputs}
        self._ids = inputs["input_ids"]
        self.padding = _padding(nodes, inputs["attention_mask"])
        length = nodes.op("Squeeze", nodes.size(self._ids, 1))
        self.long = nodes.op("Greater", length, nodes.integer(SHORT))

    def bias(self, seen: Visible) -> ir.Value:
        """Return what is added to the scores of a short text: [batch, 1, 1 or sequence, sequence]."""
        if seen.all:
            return self.padding
        name = f"attention.mask_{seen.left}_{seen.right}"
        row, whole = Nodes(self._graph, f"{name}.row"), Nodes(self._graph, f"{name}.whole")
        length = whole.op("Squeeze", whole.size(self._ids, 1))
        positions = whole.op("Range", whole.integer(0), length, whole.integer(1))
        queries = whole.op("Unsqueeze", positions, whole.integers(1))
        unused = row.graph([], [floats(row.op("Identity", self.padding))])
        mask = whole.graph([], [floats(_hide(whole, seen, queries, positions, self.padding))])
        return self.nodes.choose(self.long, unused, mask)


def _hide(nodes: Nodes, seen: Visible, queries: ir.Value, keys: ir.Value, padding: ir.Value) -> ir.Value:
    """Add the mask of a window, given positions [q, 1] and [k], to that of padding [batch, 1, 1, k]."""
    distance = nodes.op("Sub", queries, keys)
    near = []
    if seen.left is not None:
        near.append(nodes.op("LessOrEqual", distance, nodes.integer(seen.left)))
    if seen.right is not None:
        near.append(nodes.op("GreaterOrEqual", distance, nodes.integer(-seen.right)))
    both = near[0] if len(near) == 1 else nodes.op("And", *near)
    return nodes.op("Where", both, padding, nodes.number(_LOWEST))


class PooledMasks:
    """Masks of a graph of long texts that are understood, as rows for one query of each text."""

    def __init__(self, model: ir.Model, longest: int) -> None:
        masks = [attention.masks[0] for attention in attentions(model) if _divisible(attention)]
        last = masks[-1:] if longest > SHORT else []
        self.masks = {mask: seen for mask in last if (seen := _visible(model, mask, longest)) is not None}
        inputs = {value.name: value for value in model.graph.inputs}
        self._ids, self._mask = inputs["input_ids"], inputs["attention_mask"]

    def texts(self, nodes: Nodes) -> ir.Value:
        """Add the numbers of the texts, int64 [batch]."""
        count = nodes.op("Squeeze", nodes.size(self._ids, 0))
        return nodes.op("Range", nodes.integer(0), count, nodes.integer(1))

    def length(self, nodes: Nodes) -> ir.Value:
        """Add the number of tokens of the longest text, int64 []."""
        return nodes.op("Squeeze", nodes.size(self._ids, 1))

    def row(self, nodes: Nodes, mask: ir.Value, position: ir.Value) -> ir.Value:
        """Add what a mask adds to the scores of the queries at positions [batch]: [batch, 1, 1, sequence]."""
        padding, seen = _padding(nodes, self._mask), self.masks[mask]
        if not seen.all:
            keys = nodes.op("Range", nodes.integer(0), self.length(nodes), nodes.integer(1))
            padding = _hide(nodes, seen, nodes.op("Unsqueeze", position, nodes.integers(1, 2, 3)), keys, padding)
        return floats(padding)


def _padding(nodes: Nodes, attention_mask: ir.Value) -> ir.Value:
    """Add what hides padding, float32 [batch, 1, 1, sequence]."""
    real = nodes.op("Cast", attention_mask, to=ir.DataType.BOOL.value)
    row = nodes.op("Where", real, nodes.number(0.0), nodes.number(_LOWEST))
    return nodes.op("Unsqueeze", row, nodes.integers(1, 2))


@dataclass(frozen=True)
class _Operands:
    """Holds what a block of queries needs."""

    queries: ir.Value  # [batch, heads, sequence, d]
    keys: ir.Value  # [batch, groups, d, sequence]
    values: ir.Value  # [batch, groups, sequence, d]
    heads: int
    copies: int  # number of heads that share a group
    width: int  # d
    scale: ir.Node | None


def _replace(graph: ir.Graph, attention: Attention, seen: Visible, start: _Start, bias: ir.Value, name: str) -> None:
    before = Nodes(graph, name)
    shared = shared_heads(attention)
    keys = shared.keys if shared.turned else before.op("Transpose", shared.keys, perm=[0, 1, 3, 2])
    heads, width = size_of(attention.queries, 1), size_of(attention.queries, 3)
    assert heads is not None
    assert width is not None
    operands = _Operands(attention.queries, keys, shared.values, heads, shared.copies, width, attention.scale)
    long, short = Nodes(graph, f"{name}.long"), Nodes(graph, f"{name}.short")
    whole = floats(_attend(short, operands, bias))
    blocks = floats(_scan(graph, long, operands, seen, start.padding, f"{name}.block"))
    result = before.choose(start.long, long.graph([], [blocks]), short.graph([], [whole]))
    context = attention.context
    result.shape = context.outputs[0].shape
    graph.insert_before(context, before.close())
    ir.convenience.replace_all_uses_with(context.outputs[0], result)
    graph.remove(context, safe=True)


def _attend(nodes: Nodes, operands: _Operands, bias: ir.Value | None) -> ir.Value:
    """Add softmax(c Q K^T + bias) V, [batch, heads, q, d]; heads that share keys are rows of one product.

    Without a bias, the last row of the keys holds what hides padding, and the last column of the queries holds ones.
    """
    queries, copies, heads, width = operands.queries, operands.copies, operands.heads, operands.width
    if copies > 1:
        queries = nodes.op("Reshape", queries, nodes.integers(0, heads // copies, -1, width + (bias is None)))
    scores = nodes.op("MatMul", queries, operands.keys)
    if operands.scale is not None:
        scores = _scaled(nodes, operands.scale, scores)
    if bias is not None:
        scores = _masked(nodes, operands, scores, bias)
    context = nodes.op("MatMul", nodes.op("Softmax", scores, axis=-1), operands.values)
    return nodes.op("Reshape", context, nodes.integers(0, heads, -1, width)) if copies > 1 else context


def _masked(nodes: Nodes, operands: _Operands, scores: ir.Value, bias: ir.Value) -> ir.Value:
    """Add a bias [batch, 1, 1 or q, k] to scores [batch, groups, copies of q, k]."""
    copies, groups = operands.copies, operands.heads // operands.copies
    if copies == 1:
        return nodes.op("Add", scores, bias)
    columns = nodes.size(operands.keys, 3)
    apart = nodes.op("Concat", nodes.integers(0, groups, copies, -1), columns, axis=0)
    scores = nodes.op("Add", nodes.op("Reshape", scores, apart), nodes.op("Unsqueeze", bias, nodes.integers(1)))
    return nodes.op("Reshape", scores, nodes.op("Concat", nodes.integers(0, groups, -1), columns, axis=0))


def _scaled(nodes: Nodes, scale: ir.Node, value: ir.Value) -> ir.Value:
    """Add the Mul or Div of an attention to other scores, or to the queries."""
    inputs = [end if ir.convenience.get_const_tensor(end) is not None else value for end in scale.inputs if end]
    return nodes.op(scale.op_type, *inputs)


def _scan(graph: ir.Graph, nodes: Nodes, operands: _Operands, seen: Visible, padding: ir.Value, name: str) -> ir.Value:
    """Add a Scan over blocks of queries, whose results are joined and cut to the length of the text.

    Where every token sees all others, the scores of a block are the largest values of a long text, and what is
    multiplied with them or added to them reads all once more. So the queries are scaled, and a row of the keys hides
    padding.
    """
    body = Nodes(graph, name)
    start = ir.Value(name=f"{name}.start", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    first = body.op("Unsqueeze", start, body.integers(0))
    end = body.op("Add", first, body.integers(BLOCK))
    queries = body.op("Slice", operands.queries, first, end, body.integers(2))
    keys, values, bias, scale = operands.keys, operands.values, None, operands.scale
    if seen.all:
        if scale is not None:
            queries, scale = _scaled(body, scale, queries), None
        groups = operands.heads // operands.copies
        rows = nodes.op("Expand", padding, nodes.integers(1, groups, 1, 1))
        keys = nodes.op("Concat", keys, rows, axis=2)
        queries = body.op("Pad", queries, body.integers(0, 0, 0, 0, 0, 0, 0, 1), body.number(1.0))
    else:
        least = body.integers(0)
        if seen.left is not None:
            least = body.op("Max", body.op("Sub", first, body.integers(seen.left)), least)
        most = body.size(padding, 3) if seen.right is None else body.op("Add", end, body.integers(seen.right))
        keys = body.op("Slice", keys, least, most, body.integers(3))
        values = body.op("Slice", values, least, most, body.integers(2))
        bias = body.op("Slice", padding, least, most, body.integers(3))
        rows, columns = (
            _positions(body, value, axis, at) for value, axis, at in ((queries, 2, first), (keys, 3, least))
        )
        bias = _hide(body, seen, body.op("Unsqueeze", rows, body.integers(1)), columns, bias)
    context = _attend(body, replace(operands, queries=queries, keys=keys, values=values, scale=scale), bias)
    turned = body.op("Transpose", context, perm=[2, 0, 1, 3])  # [q, batch, heads, d]
    missing = body.op("Sub", body.integers(BLOCK), body.size(turned, 0))
    pads = body.op("Concat", body.integers(0, 0, 0, 0), missing, body.integers(0, 0, 0), axis=0)
    block = floats(body.op("Pad", turned, pads))  # blocks that are joined have one size
    # onnxruntime before 1.24 needs the shape of what a body gives
    block.shape = ir.Shape([BLOCK, "batch_size", operands.heads, operands.width])
    length = nodes.size(operands.queries, 2)
    starts = nodes.op("Range", nodes.integer(0), nodes.op("Squeeze", length), nodes.integer(BLOCK))
    blocks = nodes.scan(starts, body.graph([start], [block]))
    sizes = nodes.op("Concat", nodes.integers(-1), nodes.size(operands.queries, 0), axis=0)
    sizes = nodes.op("Concat", sizes, nodes.integers(operands.heads, operands.width), axis=0)
    joined = nodes.op("Slice", nodes.op("Reshape", blocks, sizes), nodes.integers(0), length, nodes.integers(0))
    return nodes.op("Transpose", joined, perm=[1, 2, 0, 3])


def _positions(nodes: Nodes, value: ir.Value, axis: int, first: ir.Value) -> ir.Value:
    """Add the positions of the tokens of an axis, int64 [n], counted from `first`."""
    count = nodes.op("Squeeze", nodes.size(value, axis))
    return nodes.op("Add", nodes.op("Range", nodes.integer(0), count, nodes.integer(1)), first)


_TOKENS, _PAIRS = 1.7, 1.2
"""Factors of what onnxruntime takes over the sum of the values that are alive: blocks are joined and turned, and freed
memory does not always fit the next value. Measured on networks of base size, 2,048 to 8,192 tokens, and rounded up."""


def text_memory(model: ir.Model, longest: int, in_blocks: bool) -> TextMemory:
    """Estimate the memory of a text of up to `longest` tokens, from a traced graph before attention is divided.

    It is that of the values which are alive at the node where they are the most. Values of unknown shape are not
    counted. `in_blocks` says that all attentions will be computed in blocks of queries.
    """
    nodes = list(model.graph)
    last = {value: index for index, node in enumerate(nodes) for value in node.inputs if value is not None}
    alive: list[tuple[int, int, int]] = []
    peak = (0, 0)
    for index, node in enumerate(nodes):
        alive += [(last.get(value, index), *_bytes(value, in_blocks)) for value in node.outputs]
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
