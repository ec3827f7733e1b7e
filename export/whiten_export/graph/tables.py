"""Begin a graph with a table of vectors, one for each token."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from whiten_export.graph.builder import GraphBuilder, describe, describe_input
from whiten_export.graph.head import OPSET


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
