"""Read ONNX graphs that other programs wrote."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx_ir as ir

from whiten_export.graph.files import strip
from whiten_runtime.bundle.graph_names import OUTPUT, UNWHITENED_OUTPUT
from whiten_runtime.bundle.graph_scan import scan_graph
from whiten_runtime.bundle.operators import unwanted
from whiten_runtime.errors import UnsafeModelError, WhitenError

_OURS = frozenset({OUTPUT, UNWHITENED_OUTPUT, "last_hidden_state"})
"""Names that a finished graph gives to its own values."""

_OLDEST_OPSET = 18


def read_graph(files: tuple[Path, ...]) -> ir.Model:
    """Read a graph, in opset 18 or newer, without metadata for debugging."""
    try:
        model = _read_linked(files) if any(file.is_symlink() for file in files) else ir.load(files[0])
    except (ValueError, OSError) as error:
        raise WhitenError(f"{files[0]}: cannot be read ({' '.join(str(error).split())}); export it again") from error
    opset = model.graph.opset_imports[""]
    if opset < _OLDEST_OPSET:
        model = _convert(files[0], opset)
    _load_attributes(model)
    strip(model)
    return model


def _read_linked(files: tuple[Path, ...]) -> ir.Model:
    """Read a graph from links: they may lead out of their folder, which onnx_ir refuses, so the files are copied."""
    with TemporaryDirectory() as folder:
        for file in files:
            shutil.copyfile(file, Path(folder, file.name))
        model = ir.load(Path(folder, files[0].name))
        ir.external_data.load_to_model(model)
        _load_attributes(model)
        return model


def _convert(path: Path, opset: int) -> ir.Model:
    import onnx
    from onnx import version_converter

    try:
        return ir.from_proto(version_converter.convert_version(onnx.load(path), _OLDEST_OPSET))
    except Exception as error:  # the converter's exceptions share no base class
        reason = " ".join(str(error).split())[:200]
        raise WhitenError(
            f"{path}: has opset {opset} and cannot be converted to {_OLDEST_OPSET} ({reason}); "
            f"export it again with --opset {_OLDEST_OPSET}"
        ) from error


def _load_attributes(model: ir.Model) -> None:
    """Load tensors of node attributes that are stored beside the graph: saving moves only initialisers."""
    for node in model.graph.all_nodes():
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                content = attribute.value.numpy().copy()
                node.attributes[name] = ir.AttrTensor(name, ir.tensor(content, name=attribute.value.name))


def make_room(graph: ir.Graph) -> None:
    """Rename values whose names a finished graph needs."""
    for node in graph:
        for value in node.outputs:
            if value.name in _OURS:
                value.name = f"source.{value.name}"


def check_safe(path: Path) -> None:
    """Check that a graph has only operators that bundles for either target may have."""
    if (what := unwanted(scan_graph(path), "cpu")) is not None:
        raise UnsafeModelError(f"{path}: has {what}; export the model without optimisations and without control flow")
