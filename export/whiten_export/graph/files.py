"""Write graphs to disk, with their weights beside them."""

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from whiten_runtime.bundle.bundle import EXTERNAL_DATA_FILE

_INLINE_LIMIT = 1_000_000
"""Bytes of weights above which they are stored in a separate file, which onnxruntime maps instead of copying."""


def save_graph(model: ir.Model, path: Path) -> None:
    """Write the graph; its weights, unless they are small, go to `model.onnx_data` beside it."""
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)
    path.parent.mkdir(parents=True, exist_ok=True)
    if size > _INLINE_LIMIT:
        ir.save(model, path, external_data=Path(EXTERNAL_DATA_FILE).name)
    else:
        ir.external_data.load_to_model(model)  # they may be stored beside another graph
        ir.save(model, path)


def read_bundle_graph(path: Path) -> ir.Model:
    """Read a bundle's graph, with weights that stay in their file, which may be a link, as in the hub's cache.

    onnx_ir refuses weights outside the graph's folder, as links lead to; these are looked up where they really are.
    """
    model = ir.load(path)
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and Path(tensor.path).is_symlink():
            value.const_value = _followed(tensor)
    return model


def _followed(tensor: ir.ExternalTensor) -> ir.ExternalTensor:
    """Return a tensor whose file is a link as one in the file that the link leads to."""
    file = Path(tensor.path).resolve()
    return ir.ExternalTensor(
        file.name,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape,
        name=tensor.name,
        base_dir=file.parent,
    )


def reopen_graph(model: ir.Model, path: Path) -> ir.Model:
    """Write the graph and read it back, so that its weights are in a file and no longer in memory."""
    save_graph(model, path)
    return ir.load(path)


def save_with_outputs(model: ir.Model, values: Sequence[ir.Value], path: Path) -> None:
    """Write the same graph with other values as its outputs, in the folder of its weights, which are not copied."""
    outputs = list(model.graph.outputs)
    try:
        model.graph.outputs[:] = values
        ir.save(model, path)
    finally:
        model.graph.outputs[:] = outputs


def strip(model: ir.Model) -> None:
    """Remove metadata for debugging: it contains paths of this machine and differs from run to run."""
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
