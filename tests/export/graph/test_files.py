"""Test the exported graph: its nodes, weights and names, and what is left out."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from support.families import LAYERS, WIDTH
from whiten_export.graph.builder import save_graph
from whiten_export.graph.head import pool_graph, set_head
from whiten_export.proof.reference import Composition
from whiten_export.sources.checkpoints.checkpoint import resolve
from whiten_export.sources.networks.pytorch import PyTorchModel

pytestmark = pytest.mark.slow


def _graph(directory: Path, layers: tuple[int, ...], dimension: int = WIDTH) -> ir.Model:
    hidden = PyTorchModel(resolve(str(directory)), False, "cpu").hidden_states(layers, "mean")
    model = pool_graph(hidden, Composition(layers), WIDTH)
    set_head(model, (np.zeros(WIDTH), np.zeros((WIDTH, dimension))), False)
    return model


def _operators(path: Path, name: str) -> int:
    return sum(node.op_type == name for node in onnx.load(path).graph.node)


@pytest.mark.parametrize(("layers", "blocks"), [((0,), 0), ((1,), 1), ((0, 2), 2), ((1, LAYERS), LAYERS)])
def test_layers_above_the_highest_chosen_are_not_in_the_file(
    checkpoint: Callable[[str], Path], tmp_path: Path, layers: tuple[int, ...], blocks: int
) -> None:
    path = tmp_path / "model.onnx"
    save_graph(_graph(checkpoint("bert"), layers), path)
    assert _operators(path, "Softmax") == blocks
    weights = {initializer.name for initializer in onnx.load(path).graph.initializer}
    assert {index for index in range(LAYERS) if any(f".layer.{index}." in name for name in weights)} == set(
        range(blocks)
    )


@pytest.fixture(scope="module")
def graph_file(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    save_graph(_graph(checkpoint("bert"), (1, 2), 8), path)
    return path


def test_names_and_shapes_of_inputs_and_outputs(graph_file: Path) -> None:
    def described(values: object) -> dict[str, list[str | int]]:
        return {
            value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in values  # type: ignore[attr-defined]
        }

    model = onnx.load(graph_file)
    onnx.checker.check_model(model, full_check=True)
    batch = ["batch_size", "sequence_length"]
    assert described(model.graph.input) == {"input_ids": batch, "attention_mask": batch}
    assert described(model.graph.output) == {
        "sentence_embedding": ["batch_size", 8],
        "last_hidden_state": ["batch_size", 1, 8],
    }
    assert {value.type.tensor_type.elem_type for value in model.graph.input} == {onnx.TensorProto.INT64}
    assert [entry.version for entry in model.opset_import if entry.domain == ""] == [20]
    assert not model.functions


def test_the_whitening_is_sub_then_matmul_in_two_initialisers(graph_file: Path) -> None:
    graph = onnx.load(graph_file).graph
    sub = next(node for node in graph.node if "whitening.mean" in node.input)
    matmul = next(node for node in graph.node if "whitening.weight" in node.input)
    assert (sub.op_type, list(sub.input)) == ("Sub", ["unwhitened_embedding", "whitening.mean"])
    assert (matmul.op_type, list(matmul.input)) == ("MatMul", [sub.output[0], "whitening.weight"])
    assert list(matmul.output) == ["sentence_embedding"]


def test_no_path_of_this_machine_is_in_the_file(graph_file: Path) -> None:
    content = graph_file.read_bytes()
    here = str(Path(__file__).parents[2]).encode()
    for trace in (here, b"site-packages", b"/home/", b"/root/", b"/tmp/", b"stack_trace"):
        assert trace not in content
