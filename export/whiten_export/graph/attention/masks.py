"""Know what the masks of attentions hide, by running them, and hold those that only hide padding as one row."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from whiten_export.graph.attention.find import attentions
from whiten_export.graph.builder import constant
from whiten_export.graph.fold_positions import PartialRun

_MOST = 1 << 16
"""Maximum number of weights that a mask may depend on: one with more is a table of relative positions."""

_LENGTHS = ((5, 3, 1), (7, 7), (1,), (2, 9))
"""Lengths of the texts in each batch on which masks are run, besides the longest: a window shows only there."""

_SHORT = 1100
"""Number of tokens that masks are run on at least, if the graph takes as many. More are needed only where a number in
the mask's nodes, such as the width of a window, is larger."""

_HIDDEN = np.float32(-1e4)
"""Number at or below which a mask hides a token: the weight of such a token is exactly 0 in float32."""


@dataclass(frozen=True)
class Visible:
    """Says which tokens a real token sees: real ones up to `left` before it and `right` after it."""

    left: int | None  # None for all
    right: int | None  # None for all; 0 in a causal network
    padding: bool = True  # whether padding is hidden
    token: float = 0.0  # what the mask adds for a token that is seen
    hidden: float = -1e4  # what it adds for one that is not; the largest of several numbers
    exact: bool = True  # whether it adds only these two numbers, for the queries of padding too

    @property
    def all(self) -> bool:
        """Return whether every real token sees all real tokens."""
        return self.left is None and self.right is None and self.padding


def visible(model: ir.Model, mask: ir.Value, longest: int, most_weights: int = _MOST) -> Visible | None:
    """Return what a mask hides in texts of up to `longest` tokens; None if it is not padding, causality or a window."""
    if mask.dtype not in (None, ir.DataType.FLOAT) or _reads_ids(mask):
        return None
    part = PartialRun(model, mask, most_weights)
    if not part.allowed:
        return None
    length = min(longest, max(_SHORT, _enough(mask, longest)))
    whole = _run(part, (length,))
    if whole is None:
        return None
    queries, keys = np.nonzero(whole[0] > _HIDDEN)
    left, right = (int(np.max(far, initial=0)) for far in (queries - keys, keys - queries))
    far = (None if left == length - 1 else left, None if right == length - 1 else right)
    levels: tuple[set[np.float32], set[np.float32]] = set(), set()
    exact = True
    for lengths in (*_LENGTHS, (length,), (max(1, length // 3), length // 2)):
        counts = np.minimum(lengths, longest)
        added = _run(part, tuple(counts))
        if added is None:
            return None
        real = np.arange(counts.max()) < counts[:, None]
        distance = np.subtract.outer(np.arange(counts.max()), np.arange(counts.max()))
        near = (far[0] is None or distance <= far[0]) & (far[1] is None or -distance <= far[1])
        seen = np.broadcast_to(real[:, None, :] & near, added.shape)
        looks = np.broadcast_to(real[:, :, None], added.shape)
        for level, which in zip(levels, (~seen, seen), strict=True):
            level |= set(np.unique(added[which & looks]))
        exact &= all(set(np.unique(added[which])) <= level for level, which in zip(levels, (~seen, seen), strict=True))
    hidden, tokens = levels
    if len(tokens) != 1 or not all(level <= _HIDDEN for level in hidden):
        return None
    (token,) = tokens
    return Visible(*far, bool(hidden), float(token), float(max(hidden, default=_HIDDEN)), exact and len(hidden) == 1)


def _run(part: PartialRun, lengths: tuple[int, ...]) -> NDArray[np.float32] | None:
    """Return what a mask adds, float32 [texts, queries, keys]; None if it differs between heads, or is no mask."""
    tokens = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    added = part({"input_ids": np.zeros_like(tokens), "attention_mask": tokens})
    texts, width = tokens.shape
    if added.dtype != np.float32 or added.ndim != 4 or added.shape[0] not in (1, texts) or added.shape[1] != 1:
        return None
    if added.shape[2] not in (1, width) or added.shape[3] != width:
        return None
    return np.broadcast_to(added[:, 0], (texts, width, width))


def _enough(mask: ir.Value, longest: int) -> int:
    """Return a number of tokens at which every window shows whose width is a number in the mask's nodes."""
    numbers = [0]
    tensors = [ir.convenience.get_const_tensor(value) for node in _nodes(mask) for value in node.inputs if value]
    for tensor in tensors:
        if tensor is not None:
            array = np.abs(np.unique(tensor.numpy().astype(np.float64)))
            numbers += array[array < longest].astype(int).tolist()
    return 2 * max(numbers) + 3


def _reads_ids(mask: ir.Value) -> bool:
    """Return whether a mask depends on token ids, not only on their number: padding may be known by its id."""
    inputs = [value for node in _nodes(mask) for value in node.inputs if value is not None]
    return any(value.is_graph_input() and value.name == "input_ids" for value in inputs)


def _nodes(mask: ir.Value) -> list[ir.Node]:
    """Return the nodes that compute a mask, except those that only read a shape."""
    nodes: dict[ir.Node, None] = {}
    waiting = [mask.producer()]
    while waiting:
        node = waiting.pop()
        if node is None or node in nodes or node.op_type == "Shape":
            continue
        nodes[node] = None
        waiting += [value.producer() for value in node.inputs if value is not None]
    return list(nodes)


def narrow_masks(model: ir.Model, longest: int) -> int:
    """Compute masks that only hide padding as [batch, 1, 1, sequence], where the result is the same to the last bit."""
    masks = dict.fromkeys(mask for attention in attentions(model) for mask in attention.masks)
    replaced = 0
    for mask in masks:
        seen = visible(model, mask, longest) if mask.producer() is not None else None
        if seen is not None and seen.all and seen.exact:
            _replace(model, mask, seen)
            replaced += 1
    RemoveUnusedNodesPass()(model)
    return replaced


def _replace(model: ir.Model, mask: ir.Value, seen: Visible) -> None:
    tape = Tape()
    source = next(value for value in model.graph.inputs if value.name == "attention_mask")
    axes = constant(model.graph, "narrow_mask.axes", np.array([1, 2], np.int64))
    real = tape.op("Unsqueeze", [tape.op("Cast", [source], {"to": ir.DataType.BOOL.value}), axes])
    row = tape.op("Where", [real, *(_level(model, value) for value in (seen.token, seen.hidden))])
    node = mask.producer()
    assert node is not None
    model.graph.insert_before(node, tape.nodes)
    row.type = ir.TensorType(ir.DataType.FLOAT)
    ir.convenience.replace_all_uses_with(mask, row)


def _level(model: ir.Model, value: float) -> ir.Value:
    return constant(model.graph, f"narrow_mask.{value!r}", np.float32(value))
