"""Test the exported graph: its nodes, weights and names, and what is left out."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from support.sizes import LAYERS, WIDTH
from whiten_export.graph.builder import save_graph, save_with_outputs
from whiten_export.graph.head import pool_graph, set_head, unwhitened_value
from whiten_export.proof.reference import Composition
from whiten_export.sources.checkpoints.checkpoint import resolve
from whiten_export.sources.networks.pytorch import PyTorchModel
from whiten_runtime.bundle.graph_scan import scan_graph

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


def test_the_same_model_gives_the_same_bytes(
    graph_file: Path, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    again = tmp_path / "model.onnx"
    save_graph(_graph(checkpoint("bert"), (1, 2), 8), again)
    assert again.read_bytes() == graph_file.read_bytes()


def test_set_head_applies_the_whitening_map(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    import onnxruntime

    model = _graph(checkpoint("bert"), (1,), 8)
    generator = np.random.default_rng(0)
    mean, weight = generator.normal(size=WIDTH), generator.normal(size=(WIDTH, 8))
    set_head(model, (mean, weight), False)
    save_with_outputs(model, [unwhitened_value(model)], tmp_path / "raw.onnx")
    save_graph(model, tmp_path / "model.onnx")
    feed = {"input_ids": np.array([[5, 6, 7]]), "attention_mask": np.array([[1, 1, 0]])}
    (raw,) = onnxruntime.InferenceSession(tmp_path / "raw.onnx").run(None, feed)
    vectors, tokens = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, feed)
    assert raw.shape == (1, WIDTH)
    np.testing.assert_allclose(vectors, (raw - mean) @ weight, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(tokens, vectors[:, None])


def test_large_weights_are_external(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    save_graph(_graph(checkpoint("bert", 4), (1,)), tmp_path / "model.onnx")
    assert scan_graph(tmp_path / "model.onnx").external_files == {"model.onnx_data"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "model.onnx_data"]
    onnx.checker.check_model(str(tmp_path / "model.onnx"))
