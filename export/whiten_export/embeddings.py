"""One table for all that is added to a word's embedding: positions, token types, whatever says nothing of the text.

An encoder adds the embedding of each token's position, and of its type, which is the same for all. Their sum is one row
for each position, so one addition does for all of them, and the nodes that compute their indices go. Whether a summand
depends on the position alone is tried out, not concluded from the graph's form.
"""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from whiten_export.building import constant
from whiten_export.trial import Trial

_MOST = 1 << 24
"""Numbers of tables that a summand may depend on."""

_BATCHES = ((5, 3, 1), (7, 7))
"""Tokens of the texts that are tried, besides the longest."""


def fold_positions(model: ir.Model, longest: int) -> int:
    """Replace the summands of the word embeddings that depend on the position alone.

    Args:
        model: float32, changed in place.
        longest: tokens that a text may have.

    Returns:
        Summands that were replaced.
    """
    words = _words(model)
    if words is None:
        return 0
    whole, summands = _summands(words)
    tables = {summand: table for summand in summands if (table := _table(model, summand, longest)) is not None}
    if not tables:
        return 0
    together = np.sum([table.astype(np.float64) for table in tables.values()], axis=0).astype(np.float32)
    tape = Tape()
    value = tape.op("Add", [words, _rows(model, tape, together)])
    for summand in summands:
        if summand not in tables:
            value = tape.op("Add", [value, summand])
    root = whole.producer()
    assert root is not None
    model.graph.insert_before(root, tape.nodes)
    ir.convenience.replace_all_uses_with(whole, value)
    RemoveUnusedNodesPass()(model)
    return len(tables)


def _words(model: ir.Model) -> ir.Value | None:
    """The embeddings of the words, [batch_size, sequence_length, h]."""
    for node in model.graph:
        if node.op_type == "Gather" and node.attributes.get_int("axis", 0) == 0:
            table, indices = node.inputs[0], node.inputs[1]
            if table is not None and table.is_initializer() and indices is not None and _is_ids(indices):
                return node.outputs[0]
    return None


def _is_ids(value: ir.Value) -> bool:
    producer = value.producer()
    if producer is not None and producer.op_type == "Reshape" and producer.inputs[0] is not None:
        value = producer.inputs[0]
    return value.is_graph_input() and value.name == "input_ids"


def _summands(words: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
    """The sum that the word embeddings go into, and what else is summed."""
    value, found = words, []
    while len(uses := list(value.uses())) == 1 and uses[0].node.op_type == "Add":
        node, index = uses[0]
        other = node.inputs[1 - index]
        assert other is not None
        found.append(other)
        value = node.outputs[0]
    return value, found


def _table(model: ir.Model, summand: ir.Value, longest: int) -> NDArray[np.float32] | None:
    """A row for each position, float32 [longest, h]; None if it depends on anything else."""
    if summand.is_initializer() or summand.is_graph_input():
        return None
    trial = Trial(model, summand, _MOST)
    if not trial.allowed:
        return None
    table = _by_position(trial, (longest,), 1)
    if table is None:
        return None
    for lengths in _BATCHES:
        for token in (0, 1, 2, 3):  # padding's own id among them
            rows = _by_position(trial, lengths, token)
            if rows is None or not np.array_equal(rows, table[: len(rows)]):
                return None
    return table


def _by_position(trial: Trial, lengths: tuple[int, ...], token: int) -> NDArray[np.float32] | None:
    """What a summand is at each position, if that is the same for all texts."""
    width = max(lengths)
    mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int64)
    ids = mask * token
    ids[:, 1::3] = 4
    found = trial({"input_ids": ids, "attention_mask": mask})
    found = found if found.ndim == 3 else found[None]
    if found.ndim != 3 or found.shape[1] != width:
        return None
    first: NDArray[np.float32] = found[0]
    return first if (found == first).all() else None


def _rows(model: ir.Model, tape: Tape, table: NDArray[np.float32]) -> ir.Value:
    """As many rows of a table as the texts are long, or the only one if all are equal."""
    if (table == table[0]).all():
        return constant(model.graph, "embeddings.constant", table[0])
    ids = next(value for value in model.graph.inputs if value.name == "input_ids")
    zero = constant(model.graph, "embeddings.zero", np.zeros(1, np.int64))
    length = tape.op("Shape", [ids], {"start": 1, "end": 2})
    return tape.op("Slice", [constant(model.graph, "embeddings.positions", table), zero, length, zero])
