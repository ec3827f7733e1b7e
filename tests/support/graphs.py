"""Small graphs of products, and runs as other programs do: by onnxruntime with its default options."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from support.families import WIDENED
from whiten_export.graph.build import HiddenStates, constant

WIDTH, INNER = 96, 64
TOKENS = ", ".join(f"int64[batch_size, sequence_length] {name}" for name in ("input_ids", "attention_mask"))
"""Inputs of a network, in ONNX's text."""


def default_session(model: Path | bytes, optimized: Path | None = None) -> onnxruntime.InferenceSession:
    """Create a session with onnxruntime's default options; it can write the graph that it made of it to a file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    graph = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def traced_layers(checkpoint: Callable[..., Path], family: str, layers: Sequence[int]) -> HiddenStates:
    """Trace layers of the small network of an architecture."""
    from whiten_export.sources.pytorch import PyTorchModel
    from whiten_export.sources.resolve import resolve

    return PyTorchModel(resolve(str(checkpoint(family, WIDENED))), False, "cpu").hidden_states(tuple(layers), "mean")


def fused(model: Path, folder: Path) -> Counter[str]:
    """Return how many nodes of each kind a graph has after onnxruntime's default optimisations."""
    default_session(model, folder / "optimized.onnx")
    optimized = onnx.load(folder / "optimized.onnx", load_external_data=False)
    return Counter(node.op_type for node in optimized.graph.node)


def additions_before_norms(model: Path) -> list[str]:
    """Return the names of the results of Add that a normalisation reads, whole or in its older form."""
    nodes = onnx.load(model, load_external_data=False).graph.node
    read = {node.input[0] for node in nodes if "LayerNormalization" in node.op_type}
    means, less = ({node.input[0] for node in nodes if node.op_type == kind} for kind in ("ReduceMean", "Sub"))
    return [node.output[0] for node in nodes if node.op_type == "Add" and node.output[0] in read | (means & less)]


def graph_of(text: str, arrays: Mapping[str, np.ndarray]) -> ir.Model:
    """Return a graph from ONNX's text; values that nothing gives are initialisers, with "_" for "." in their names."""
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1, "whiten.attention" : 1]> g {text}'
    )
    for name, array in arrays.items():
        for node in model.graph:
            for index, value in enumerate(node.inputs):
                if value is not None and value.name == name.replace(".", "_"):
                    node.replace_input_with(index, constant(model.graph, name, array))
    return model


def linear_graph(generator: np.random.Generator) -> tuple[ir.Model, dict[str, np.ndarray]]:
    """Return a graph and its weights: two MatMuls of one value, their sum, and a third with the whitening's name."""
    shapes = {"a": (WIDTH, INNER), "b": (WIDTH, INNER), "whitening.weight": (INNER, INNER)}
    weights = {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    text = f"""(float[n, s, {WIDTH}] x) => (float[n, s, {INNER}] y)
    {{ p = MatMul(x, a)
       q = MatMul(x, b)
       z = Add(p, q)
       y = MatMul(z, whitening_weight) }}"""
    return graph_of(text, weights), weights


def run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    session = default_session(ir.to_proto(model).SerializeToString())
    (y,) = session.run(None, {"x": x})
    return np.asarray(y)


def count(model: ir.Model, operator: str) -> int:
    return sum(node.op_type == operator for node in model.graph)
