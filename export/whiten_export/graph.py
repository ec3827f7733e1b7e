"""The reference module as an ONNX graph, and the two initialisers at its end that hold the whitening."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from whiten_export.loading import quiet
from whiten_export.reference import SentenceEncoder
from whiten_runtime.bundle import EXTERNAL_DATA_FILE
from whiten_runtime.engine import OUTPUT, UNWHITENED_OUTPUT
from whiten_runtime.errors import WhitenError

OPSET = 20
MEAN, WEIGHT = "whitening.mean", "whitening.weight"

_INLINE_LIMIT = 1_000_000
"""Bytes of weights above which they go to a file of their own, which onnxruntime maps instead of copying."""


def export_graph(encoder: SentenceEncoder) -> ir.Model:
    """Trace the module. What the chosen layers do not need, such as the layers above them, is not in the graph.

    Raises:
        WhitenError: PyTorch's exporter does not support the network.
    """
    # More than one row, and one of them padded: sizes of 1 and full masks are specialised away.
    input_ids = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 8, 9], [6, 7, 8, 0, 0]])
    attention_mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    axes = {0: torch.export.Dim("batch_size"), 1: torch.export.Dim("sequence_length")}
    encoder.eval()
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                encoder,
                (input_ids, attention_mask),
                dynamo=True,
                opset_version=OPSET,
                input_names=["input_ids", "attention_mask"],
                output_names=[OUTPUT, "last_hidden_state"],
                dynamic_shapes=(axes, axes),
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        family = getattr(getattr(encoder.network, "config", None), "model_type", "unknown")
        raise WhitenError(
            f"PyTorch cannot export a network of type '{family}': {str(error).strip().splitlines()[0]}; "
            "run with --debug for the whole report"
        ) from error
    if program is None:
        raise WhitenError("PyTorch's exporter returned nothing; it needs dynamo=True support")
    model: ir.Model = program.model
    _strip(model)
    if encoder.whitening is not None:
        _unwhitened(model).name = UNWHITENED_OUTPUT
    return model


def set_whitening(model: ir.Model, mean: NDArray[np.floating], weight: NDArray[np.floating]) -> None:
    """Replace the whitening, mean [d] and weight [d, k], rounded to float32."""
    for name, value in ((MEAN, mean), (WEIGHT, weight)):
        initializer = model.graph.initializers[name]
        if initializer.shape != ir.Shape(value.shape):
            raise ValueError(f"{name} has shape {initializer.shape}, not {value.shape}")
        initializer.const_value = ir.tensor(np.ascontiguousarray(value, np.float32), name=name)


def save_graph(model: ir.Model, path: Path) -> None:
    """Write the graph; its weights, unless they are small, go to `model.onnx_data` beside it."""
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)
    path.parent.mkdir(parents=True, exist_ok=True)
    external = Path(EXTERNAL_DATA_FILE).name if size > _INLINE_LIMIT else None
    ir.save(model, path, external_data=external)


def save_unwhitened_graph(model: ir.Model, path: Path) -> None:
    """Write the same graph with `unwhitened_embedding`, float32 [batch_size, d], as its only output."""
    save_graph_with_outputs(model, [_unwhitened(model)], path)


def save_graph_with_outputs(model: ir.Model, values: Sequence[ir.Value], path: Path) -> None:
    """Write the same graph with other values as its outputs."""
    outputs = list(model.graph.outputs)
    try:
        model.graph.outputs[:] = values
        save_graph(model, path)
    finally:
        model.graph.outputs[:] = outputs


def _strip(model: ir.Model) -> None:
    """Drop what only debuggers read: it holds this machine's paths and differs from run to run."""
    model.producer_name, model.producer_version, model.doc_string = "whiten", None, None
    model.metadata_props.clear()
    model.graph.name, model.graph.doc_string = "whiten", None
    model.graph.metadata_props.clear()
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


def _unwhitened(model: ir.Model) -> ir.Value:
    """The input of the Sub that subtracts the mean: the vector before whitening."""
    ((node, index),) = model.graph.initializers[MEAN].uses()
    value = node.inputs[1 - index]
    if node.op_type != "Sub" or value is None:
        raise WhitenError(f"the exported graph ends in {node.op_type}, not Sub; this version of torch is not supported")
    return value
