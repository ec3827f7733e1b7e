"""Test ONNX graphs that give a sentence vector besides token states, and graphs that quantise by batch."""

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from onnx_ir.tape import Tape

from support.checkpoints import write_json, write_modules, write_tensors
from support.cli import ok, refused
from support.families import LAYERS, WIDTH
from support.onnx_folders import WEIGHT, Change, own_vectors, rename_last, save_encoder
from whiten import Encoder, Recipe, export_bundle
from whiten_export import export
from whiten_export.prove import reference_vectors
from whiten_export.sources import network, pytorch
from whiten_export.sources.network import load_tokenizer
from whiten_runtime.bundle.manifest import read_manifest

pytestmark = pytest.mark.slow


@pytest.fixture
def write(checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    def get(*changes: Change, layers: tuple[int, ...] = (LAYERS,)) -> Path:
        def change(model: ir.Model) -> None:
            for each in changes:
                each(model)

        return save_encoder(checkpoint("bert"), tmp_path / "encoder", layers, change)

    return get


def told(folder: Path, *options: object) -> list[str]:
    result = ok("export", folder, "--whitening", "none", *options, "--out", folder.parent / "b")
    return [line for line in result.stderr.splitlines() if "own output" in line]


@pytest.mark.parametrize("name", ["sentence_embedding", "embeddings", "text_embeds", "dense_vecs"])
def test_an_own_vector_that_is_the_pooled_one_is_no_matter(write: Callable[..., Path], name: str) -> None:
    assert told(write(own_vectors(name))) == []


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("unit", [False, True])
def test_an_own_vector_says_the_pooling_and_whether_it_is_divided_by_its_norm(
    write: Callable[..., Path], pooling: str, unit: bool
) -> None:
    folder = write(own_vectors("sentence_embedding", pooling, unit=unit), layers=(0, LAYERS))
    assert told(folder) == []
    manifest = read_manifest(folder.parent / "b")
    assert (manifest.pooling, manifest.normalize, manifest.layers) == (pooling, unit, (LAYERS,))
    assert manifest.source.sentence_similarity


def test_vectors_of_a_graph_that_makes_others_itself_are_not_whitened_by_default(write: Callable[..., Path]) -> None:
    folder = write(own_vectors("sentence_embedding", dense=True))
    ok("export", folder, "--pooling", "mean", "--out", folder.parent / "b")
    assert read_manifest(folder.parent / "b").whitening is None


def test_advice_of_a_graph_that_contradicts_its_modules_can_be_followed(write: Callable[..., Path]) -> None:
    folder = write(own_vectors("sentence_embedding", "cls", unit=True))
    write_modules(folder, "Transformer", "Pooling")
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    error = refused("export", folder, "--out", folder.parent / "b")
    assert "--pooling NAME, mean too," in error
    ok("export", folder, *["--pooling", "cls", "--whitening", "none", "--normalize"], "--out", folder.parent / "b")


@pytest.mark.parametrize("name", ["pooler_output", "logits"])
def test_what_is_no_sentence_vector_is_left_alone(write: Callable[..., Path], name: str) -> None:
    """As transformers and optimum write them beside last_hidden_state."""
    assert told(write(own_vectors(name, "cls", dense=True))) == []


def test_an_output_that_may_be_anything_is_told(write: Callable[..., Path]) -> None:
    (line,) = told(write(own_vectors("output_1", "cls", dense=True)))
    assert "own output output_1 is not used: its token states are pooled (mean)" in line


def test_modules_beside_the_graph_are_compared_with_its_own_vector(write: Callable[..., Path]) -> None:
    folder = write(own_vectors("sentence_embedding", "cls", dense=True, unit=True))
    write_modules(folder, "Transformer", "Pooling", "Dense", "Normalize")
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True})
    settings = {"in_features": WIDTH, "out_features": 8, "bias": False}
    identity = "torch.nn.modules.linear.Identity"
    write_json(folder / "2_Dense" / "config.json", settings | {"activation_function": identity})
    write_tensors(folder / "2_Dense" / "model.safetensors", {"linear.weight": WEIGHT.T})
    (folder / "3_Normalize").mkdir(exist_ok=True)
    assert told(folder) == []
    with Encoder(folder.parent / "b") as encoder:
        assert encoder.dimension == 8
    write_tensors(folder / "2_Dense" / "model.safetensors", {"linear.weight": -WEIGHT.T})
    assert "is another vector than cls pooling" in refused("export", folder, "--out", folder.parent / "c")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (own_vectors("sentence_embedding", dense=True), "(8 numbers, not 32)"),
        (
            own_vectors("embeddings", dense=True, unit=True),
            "(8 numbers, not 32)",
        ),
        (own_vectors("sentence_embedding", nan=True), "(NaN or infinite for some texts)"),
        (
            own_vectors("sentence_embedding", top=0),
            "is another vector than mean pooling of its token states gives (cosine ",
        ),
    ],
)
def test_another_own_vector_is_refused_unless_a_pooling_is_named(
    write: Callable[..., Path], change: Change, message: str
) -> None:
    folder = write(change, layers=(0, LAYERS))
    error = refused("export", folder, "--out", folder.parent / "b")
    assert message in error
    assert "the graph's own output" in error
    assert not (folder.parent / "b").exists()
    (line,) = told(folder, "--pooling", "mean")
    assert "is not used: its token states are pooled (mean)" in line


def quantised(model: ir.Model) -> None:
    """Take one scale for all token states of a batch."""
    rename_last(model)
    graph, tape = model.graph, Tape()
    state = graph.outputs[-1]
    quantised, scale, zero = tape.op_multi_out("DynamicQuantizeLinear", [state], num_outputs=3)
    value = tape.op("DequantizeLinear", [quantised, scale, zero])
    state.name, value.name, value.type, value.shape = "exact", "last_hidden_state", state.type, state.shape
    graph.extend(tape.nodes)
    graph.outputs[-1] = value


def of_onnxruntime(model: ir.Model) -> None:
    node = next(node for node in model.graph if node.op_type == "MatMul")
    node.op_type, node.domain = "DynamicQuantizeMatMul", "com.microsoft"
    model.graph.opset_imports["com.microsoft"] = 1


@pytest.mark.parametrize(
    ("change", "name"), [(quantised, "DynamicQuantizeLinear"), (of_onnxruntime, "DynamicQuantizeMatMul")]
)
def test_graphs_that_quantise_by_batch_are_refused_before_a_corpus_is_read(
    write: Callable[..., Path], change: Change, name: str
) -> None:
    folder = write(change)
    error = refused("export", folder, "--corpus", "nowhere.txt", "--out", folder.parent / "b", code=1)
    assert f"model.onnx: quantises by batch ({name}), so a text's vector would depend on the texts beside it" in error
    assert "--precision int8" in error


@pytest.mark.parametrize("of_onnx", [False, True], ids=["network", "onnx"])
def test_the_tokenizer_of_transformers_is_freed_once_it_was_compared(
    checkpoint: Callable[[str], Path], tmp_path: Path, of_onnx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint("xlm-roberta")
    if of_onnx:
        folder = save_encoder(folder, tmp_path / "onnx", (LAYERS,), rename_last)
    opened: list[weakref.ref[Any]] = []
    alive: list[bool] = []

    def load(*arguments: Any, **options: Any) -> Any:
        tokenizer = load_tokenizer(*arguments, **options)
        opened.append(weakref.ref(tokenizer))
        return tokenizer

    def vectors(*arguments: Any) -> Any:
        alive.extend(one() is not None for one in opened)
        return reference_vectors(*arguments)

    for module in (pytorch, network):
        monkeypatch.setattr(module, "load_tokenizer", load)
    monkeypatch.setattr(export, "reference_vectors", vectors)
    export_bundle(Recipe(str(folder), whitening=None), tmp_path / "b")
    assert alive == [False]
