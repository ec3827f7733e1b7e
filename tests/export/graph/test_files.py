"""Test the exported graph: its nodes, weights and names, and what is left out."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from support.families import LAYERS, MAX_LENGTH, WIDTH
from whiten_export.graph.attention import lower_attention
from whiten_export.graph.build import save_graph
from whiten_export.sources.pytorch import PyTorchModel
from whiten_export.sources.resolve import resolve
from whiten_runtime.bundle.bundle import MODEL_FILE


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "blocks"), [((0,), 0), ((1,), 1), ((0, 2), 2), ((1, LAYERS), LAYERS)])
def test_layers_above_the_highest_chosen_are_not_in_the_file(
    checkpoint: Callable[[str], Path], tmp_path: Path, layers: tuple[int, ...], blocks: int
) -> None:
    network = PyTorchModel(resolve(str(checkpoint("bert"))), False, "cpu").hidden_states(layers, "mean").model
    lower_attention(network, MAX_LENGTH)
    save_graph(network, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert sum(node.op_type in ("Attention", "Softmax") for node in graph.node) == blocks
    weights = {initializer.name for initializer in graph.initializer}
    assert {index for index in range(LAYERS) if any(f".layer.{index}." in name for name in weights)} == set(
        range(blocks)
    )


def test_names_and_shapes_of_inputs_and_outputs(fresh_bundle: Path) -> None:
    def described(values: object) -> dict[str, list[str | int]]:
        return {
            value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in values  # type: ignore[attr-defined]
        }

    model = onnx.load(fresh_bundle / MODEL_FILE)
    onnx.checker.check_model(model, full_check=True)
    batch = ["batch_size", "sequence_length"]
    assert described(model.graph.input) == {"input_ids": batch, "attention_mask": batch}
    assert described(model.graph.output) == {
        "sentence_embedding": ["batch_size", WIDTH],
        "last_hidden_state": ["batch_size", 1, WIDTH],
        "unwhitened_embedding": ["batch_size", WIDTH],
    }
    assert {value.type.tensor_type.elem_type for value in model.graph.input} == {onnx.TensorProto.INT64}
    assert [entry.version for entry in model.opset_import if entry.domain == ""] == [20]
    assert not model.functions


def test_no_path_of_this_machine_is_in_the_file(fresh_bundle: Path) -> None:
    content = (fresh_bundle / MODEL_FILE).read_bytes()
    here = str(Path(__file__).parents[2]).encode()
    for trace in (here, b"site-packages", b"/home/", b"/root/", b"/tmp/", b"stack_trace"):
        assert trace not in content


def test_the_whitening_is_sub_then_matmul_in_two_initialisers(fresh_bundle: Path) -> None:
    graph = onnx.load(fresh_bundle / MODEL_FILE).graph
    sub = next(node for node in graph.node if "whitening.mean" in node.input)
    matmul = next(node for node in graph.node if "whitening.weight" in node.input)
    assert (sub.op_type, list(sub.input)) == ("Sub", ["unwhitened_embedding", "whitening.mean"])
    assert (matmul.op_type, list(matmul.input)) == ("MatMul", [sub.output[0], "whitening.weight"])
    assert list(matmul.output) == ["sentence_embedding"]
