"""Run graphs as other programs do: onnxruntime with its default options, which fuses all that it can."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from whiten_runtime.bundle.graph import OUTPUT


def default_options() -> onnxruntime.SessionOptions:
    """Return onnxruntime's default options, but for its log."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return options


def default_session(model: Path | bytes, optimized: Path | None = None) -> onnxruntime.InferenceSession:
    """Create a session with onnxruntime's default options; it can write the graph that it made of it to a file."""
    options = default_options()
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    graph = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def fused(model: Path, folder: Path) -> Counter[str]:
    """Return how many nodes of each kind a graph has after onnxruntime's default optimisations."""
    default_session(model, folder / "optimized.onnx")
    optimized = onnx.load(folder / "optimized.onnx", load_external_data=False)
    return Counter(node.op_type for node in optimized.graph.node)


def default_vectors(model: Path, ids: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the vectors of tokenised texts, float32 [texts, k], each run alone."""
    session = default_session(model)
    rows = []
    for one in ids:
        tokens = np.array([one], np.int64).reshape(1, len(one))
        rows.append(session.run([OUTPUT], {"input_ids": tokens, "attention_mask": np.ones_like(tokens)})[0][0])
    return np.stack(rows)


def largest_difference(got: np.ndarray, want: np.ndarray) -> float:
    """Return the largest difference of a coordinate over the vector's norm; vectors of norm 0 must be equal."""
    norms = np.linalg.norm(want, axis=1, keepdims=True)
    np.testing.assert_array_equal(got[norms[:, 0] == 0], want[norms[:, 0] == 0])
    return float((np.abs(got - want) / np.where(norms == 0, 1, norms)).max())


def additions_before_norms(model: Path) -> list[str]:
    """Return the names of the results of Add that a normalisation reads, whole or in its older form."""
    nodes = onnx.load(model, load_external_data=False).graph.node
    read = {node.input[0] for node in nodes if "LayerNormalization" in node.op_type}
    means, less = ({node.input[0] for node in nodes if node.op_type == kind} for kind in ("ReduceMean", "Sub"))
    return [node.output[0] for node in nodes if node.op_type == "Add" and node.output[0] in read | (means & less)]
