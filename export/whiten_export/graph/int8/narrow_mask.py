"""Replace an attention mask [batch, 1, sequence, sequence] whose rows are all alike by one row."""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from whiten_export.graph.builder import constant
from whiten_export.graph.partial_run import PartialRun

_MOST = 1 << 16
"""Maximum number of weights that a mask may depend on: one with more is a table of relative positions."""

_LENGTHS = ((5, 3, 1), (7, 7), (1,), (2, 9))
"""Lengths of the texts in each batch on which masks are compared, besides the longest: a window shows only there."""

_LONGEST = 4096
"""Maximum number of tokens of a text up to which masks are narrowed: a whole mask of more takes over 64 MB."""


def narrow_masks(model: ir.Model, longest: int) -> int:
    """Compute each mask that is added to attention scores as [batch, 1, 1, sequence], where that gives the same scores.

    Whether all queries have the same mask, and whether it depends on `attention_mask` alone, is tested by running it.
    """
    if longest > _LONGEST:
        return 0
    replaced = 0
    for mask in _masks(model):
        levels = _levels(model, mask, longest)
        if levels is not None:
            _replace(model, mask, *levels)
            replaced += 1
    RemoveUnusedNodesPass()(model)
    return replaced


def _masks(model: ir.Model) -> list[ir.Value]:
    """Return the values that are added to the input of a Softmax and depend on neither weights nor activations."""
    found: dict[ir.Value, None] = {}
    for node in model.graph:
        scores = node.inputs[0].producer() if node.op_type == "Softmax" and node.inputs[0] is not None else None
        if scores is not None and scores.op_type == "Add":
            found |= {value: None for value in scores.inputs if value is not None and value.producer() is not None}
    return list(found)


def _levels(model: ir.Model, mask: ir.Value, longest: int) -> tuple[np.float32, np.float32] | None:
    """Return what a mask adds for a token and for padding; None if it differs between queries."""
    if mask.dtype not in (None, ir.DataType.FLOAT) or _reads_ids(mask):
        return None
    part = PartialRun(model, mask, _MOST)
    if not part.allowed:
        return None
    levels: dict[bool, set[np.float32]] = {True: set(), False: set()}
    for lengths in (*_LENGTHS, (longest, longest // 2)):
        counts = np.minimum(lengths, longest)
        tokens = (np.arange(counts.max()) < counts[:, None]).astype(np.int64)
        found = part({"input_ids": np.random.default_rng(0).integers(5, 50, tokens.shape), "attention_mask": tokens})
        if found.dtype != np.float32 or found.ndim != 4 or found.shape[:2] != (len(counts), 1):
            return None
        if found.shape[3] != tokens.shape[1]:
            return None
        for kept in levels:
            rows = np.broadcast_to(tokens[:, None, None] == kept, found.shape)
            levels[kept] |= set(np.unique(found[rows]))
    (token, *more), (padding, *others) = sorted(levels[True]), sorted(levels[False])
    return (token, padding) if not more and not others and padding < token else None


def _reads_ids(mask: ir.Value) -> bool:
    """Return whether a mask depends on token ids, not only on their number: padding may be known by its id."""
    known, open_ = set(), [mask.producer()]
    while open_:
        node = open_.pop()
        if node is None or node in known or node.op_type == "Shape":
            continue
        known.add(node)
        if any(value is not None and value.is_graph_input() and value.name == "input_ids" for value in node.inputs):
            return True
        open_ += [value.producer() for value in node.inputs if value is not None]
    return False


def _replace(model: ir.Model, mask: ir.Value, token: np.float32, padding: np.float32) -> None:
    tape = Tape()
    given = next(value for value in model.graph.inputs if value.name == "attention_mask")
    axes = constant(model.graph, "narrow_mask.axes", np.array([1, 2], np.int64))
    kept = tape.op("Unsqueeze", [tape.op("Cast", [given], {"to": ir.DataType.BOOL.value}), axes])
    added = [_level(model, value) for value in (token, padding)]
    row = tape.op("Where", [kept, *added])
    producer = mask.producer()
    assert producer is not None
    model.graph.insert_before(producer, tape.nodes)
    row.type = ir.TensorType(ir.DataType.FLOAT)
    ir.convenience.replace_all_uses_with(mask, row)


def _level(model: ir.Model, value: np.float32) -> ir.Value:
    array: NDArray[np.float32] = np.asarray(value, np.float32)
    return constant(model.graph, f"narrow_mask.{float(value)!r}", array)
