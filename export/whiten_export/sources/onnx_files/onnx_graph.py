"""Read ONNX graphs that other programs wrote, and derive their further inputs from token ids and mask."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.tape import Tape

from whiten_export.graph.builder import constant
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
