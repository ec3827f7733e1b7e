"""Begin a graph: token ids and a mask are all that it takes, or a table of vectors follows them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.tape import Tape

from whiten_export.graph.builder import GraphBuilder, constant, describe, describe_input
from whiten_export.graph.head import OPSET

INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "position_ids"})
"""Inputs that a graph may have: the whole text is segment 0, and its tokens are counted from 0."""


def feed_of(
    names: Sequence[str], input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Return the inputs that a graph takes, int64 [batch_size, sequence_length] each."""
    feed = {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "token_type_ids": np.zeros_like(input_ids),
        "position_ids": np.maximum(np.cumsum(attention_mask, axis=1) - 1, 0),
    }
    return {name: feed[name] for name in names}


def replace_inputs(model: ir.Model) -> None:
    """Compute every other input of a graph inside it, as `feed_of` does; its inputs are then token ids and mask."""
    graph = model.graph
    inputs = {str(value.name): value for value in graph.inputs}
    tape = Tape()
    ids, mask = (inputs.get(name) or ir.Value(name=name) for name in ("input_ids", "attention_mask"))
    for name, value in inputs.items():
        if name == "token_type_ids":
            derived = tape.op("Sub", [ids, ids])
        elif name == "position_ids":
            axis, one = constant(graph, "whiten.axis", np.int64(1)), constant(graph, "whiten.first", np.int64(1))
            zero = constant(graph, "whiten.zero", np.int64(0))
            derived = tape.op("Max", [tape.op("Sub", [tape.op("CumSum", [mask, axis]), one]), zero])
        else:
            continue
        ir.convenience.replace_all_uses_with(value, derived)
    _put_first(graph, tape)
    graph.inputs[:] = [ids, mask]


def map_surplus(model: ir.Model, surplus_from: int, unknown_token_id: int) -> None:
    """Replace ids from `surplus_from` on by that of the unknown token."""
    graph = model.graph
    ids = next(value for value in graph.inputs if value.name == "input_ids")
    first = constant(graph, "whiten.surplus_from", np.int64(surplus_from))
    unknown = constant(graph, "whiten.unknown", np.int64(unknown_token_id))
    users = list(ids.uses())
    tape = Tape()
    mapped = tape.op("Where", [tape.op("Less", [ids, first]), ids, unknown])
    for node, index in users:
        node.replace_input_with(index, mapped)
    _put_first(graph, tape)


def _put_first(graph: ir.Graph, tape: Tape) -> None:
    for index, node in enumerate(tape.nodes):
        node.name = f"whiten_input_{index}"
        for output in node.outputs:
            output.name = output.name or f"whiten.input_{index}"
    if first := next(iter(graph), None):
        graph.insert_before(first, tape.nodes)


def look_up(table: NDArray[np.float32], prefix: str) -> tuple[GraphBuilder, ir.Value]:
    """Begin a graph that looks up the row of each token id in a table [n, d]; return its builder and the rows."""
    ids, mask = (describe_input(ir.Value(name=name)) for name in ("input_ids", "attention_mask"))
    graph = ir.Graph([ids, mask], [], nodes=[], opset_imports={"": OPSET}, name="whiten")
    builder = GraphBuilder(ir.Model(graph, ir_version=10, producer_name="whiten"), prefix)
    state = builder.op("Gather", builder.constant(f"{prefix}.vectors", table), ids)
    return builder, describe(state, "hidden_states.0", "batch_size", "sequence_length", table.shape[1])


def table_config(table: NDArray[np.float32]) -> Mapping[str, Any]:
    """Return the content of `config.json` for a table [n, d]."""
    return {
        "model_type": "bert",  # other programs must find an architecture that they know; they do not use it
        "architectures": ["BertModel"],
        "hidden_size": table.shape[1],
        "num_hidden_layers": 0,
        "vocab_size": len(table),
    }
