"""Compute parts of a graph that depend on few inputs once, at export: tables of positions."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from whiten_export.graph.build import constant
from whiten_runtime.errors import RunError, one_line
from whiten_runtime.files.replacing import written_as
from whiten_runtime.ort.session import SessionOptions, create_session


class PartialRun:
    """Computes only one value of a model."""

    def __init__(self, model: ir.Model, value: ir.Value, most: int) -> None:
        part = ir.convenience.extract(model.graph, list(model.graph.inputs), [value])
        weights = [weight.const_value for weight in part.initializers.values()]
        self.allowed = sum(weight.size for weight in weights if weight is not None) <= most
        self._session: Any = None
        if self.allowed:
            small = ir.Model(part, ir_version=model.ir_version)
            ir.external_data.load_to_model(small)
            place = Path(tempfile.gettempdir())
            with written_as(place, "another TMPDIR"), tempfile.TemporaryDirectory(dir=place) as folder:
                path = Path(folder) / "part.onnx"
                ir.save(small, path)
                self._session = create_session(path, SessionOptions(threads=1))

    def __call__(self, feed: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Return the value for token ids and a mask, int64 [batch_size, sequence_length]."""
        try:
            (array,) = self._session.run(None, {value.name: feed[value.name] for value in self._session.get_inputs()})
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise RunError(one_line(error)) from error
        result: NDArray[np.float32] = array
        return result


PREFIX = "whiten_positions"
"""Prefix of the names of the nodes that are added: part of the network, and so of its precision."""

_MOST = 1 << 24
"""Maximum number of weights that a summand may depend on."""

_SHAPES = ((3, 5), (2, 7), (1, 1))
"""Numbers of texts and of tokens on which a table is checked, besides two texts of every power of two and the longest.
"""


def fold_positions(model: ir.Model, longest: int) -> int:
    """Replace the summands of the word embeddings that depend only on the position."""
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
    for index, node in enumerate(tape.nodes):  # onnx_ir's own names depend on how the graph came to be
        node.name = f"{PREFIX}_{index}"
        for output in node.outputs:
            output.name = f"whiten.positions_{index}"
    model.graph.insert_before(root, tape.nodes)
    ir.convenience.replace_all_uses_with(whole, value)
    RemoveUnusedNodesPass()(model)
    return len(tables)


def _words(model: ir.Model) -> ir.Value | None:
    """Return the word embeddings, [batch_size, sequence_length, h]."""
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
    """Return the sum that the word embeddings are part of, and its other summands."""
    value, summands = words, []
    while len(uses := list(value.uses())) == 1 and uses[0].node.op_type == "Add":
        node, index = uses[0]
        other = node.inputs[1 - index]
        assert other is not None
        summands.append(other)
        value = node.outputs[0]
    return value, summands


def _table(model: ir.Model, summand: ir.Value, longest: int) -> NDArray[np.float32] | None:
    """Return a row for each position, float32 [longest, h]; None if the summand is another for other texts."""
    if summand.is_initializer() or _reads_text(summand):
        return None
    part = PartialRun(model, summand, _MOST)
    if not part.allowed:
        return None
    doubled = ((2, 1 << exponent) for exponent in range(longest.bit_length()))
    table: NDArray[np.float32] | None = None
    for texts, length in ((2, longest), *doubled, *_SHAPES):
        shape = (texts, min(length, longest))
        try:
            rows = part({"input_ids": np.zeros(shape, np.int64), "attention_mask": np.ones(shape, np.int64)})
        except RunError:  # of a length that the network does not take: the gate finds it, and names it
            return None
        rows = rows if rows.ndim == 3 else rows[None]
        if rows.ndim != 3 or rows.shape[1] != shape[1]:
            return None
        table = rows[0] if table is None else table
        if not (rows == table[: shape[1]]).all():
            return None
    return table


def _reads_text(value: ir.Value) -> bool:
    """Return whether a value may depend on more of a text than its number of tokens: on token ids, or on the mask.

    No number of texts would show that it does not: RoBERTa counts the tokens that are not the padding id.
    """
    waiting, seen = [value], set[ir.Value]()
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if value.is_graph_input() or (node is not None and _has_graph(node)):
            return True
        waiting += [] if node is None else _decisive(node)
    return False


def _has_graph(node: ir.Node) -> bool:
    """Return whether a node runs a graph, which reads more values than the inputs of the node."""
    return any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values())


def _decisive(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of a node whose numbers decide its output; not those of which it takes the shape alone."""
    inputs = [value for value in node.inputs if value is not None]
    if node.op_type in ("Shape", "Size") or (node.op_type == "Sub" and inputs[0] is inputs[1]):
        return []
    if node.op_type == "Mul" and any(map(_is_zero, inputs)):
        return []
    if node.op_type in ("Gather", "GatherElements") and _has_equal_rows(inputs[0], node.attributes.get_int("axis", 0)):
        return inputs[:1]  # whatever is looked up
    return inputs


def _is_zero(value: ir.Value) -> bool:
    tensor = ir.convenience.get_const_tensor(value)
    return tensor is not None and tensor.size == 1 and not tensor.numpy().any()


def _has_equal_rows(value: ir.Value, axis: int) -> bool:
    """Return whether a table is one row that is repeated along an axis, such as the token types of a text."""
    node = value.producer()
    if node is not None and node.op_type == "Expand" and node.inputs[0] is not None:
        value = node.inputs[0]
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or not -tensor.shape.rank() <= axis < tensor.shape.rank():
        return False
    rows = tensor.numpy()
    return bool((rows == rows.take([0], axis)).all())


def _rows(model: ir.Model, tape: Tape, table: NDArray[np.float32]) -> ir.Value:
    """Return the first rows of a table, one per token, or its only row if all are equal."""
    if len(table) > 1 and (table == table[0]).all():
        return constant(model.graph, "embeddings.constant", table[0])
    ids = next(value for value in model.graph.inputs if value.name == "input_ids")
    zero = constant(model.graph, "embeddings.zero", np.zeros(1, np.int64))
    length = tape.op("Shape", [ids], {"start": 1, "end": 2})
    return tape.op("Slice", [constant(model.graph, "embeddings.positions", table), zero, length, zero])
