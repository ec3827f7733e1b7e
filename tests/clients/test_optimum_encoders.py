"""Test bundles made from directories that the real optimum exported, against the original checkpoints."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers
from safetensors.numpy import load_file

from support.corpus import NASTY, sentences
from support.families import LAYERS, WIDENED
from whiten import Encoder
from whiten_export.export import export_bundle
from whiten_export.recipe import Recipe
from whiten_runtime.bundle.manifest import Pooling
from whiten_runtime.bundle.parity import GATES, compare

pytestmark = [pytest.mark.slow, pytest.mark.clients]

TEXTS = ["", "a", *sentences(40), "word " * 100, *NASTY]
DIM = 32

Optimum = Callable[..., Path]


@pytest.fixture(scope="module")
def optimum(run_client: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Optimum:
    """Return a function that runs optimum's export command on a checkpoint."""

    def make(directory: Path, *options: object, **variables: str) -> Path:
        out = tmp_path_factory.mktemp("optimum") / directory.name
        command = ("export", "onnx", "--model", directory, "--task", "feature-extraction", *options, out)
        run_client("optimum-cli", *command, **variables)
        return out

    return make


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[str]:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n".join(sentences(800)), "utf-8")
    return (str(path),)


def full_model_states(directory: Path, encoder: Path, max_length: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Return all hidden states of PyTorch's original model in float64, and the number of tokens of each text.

    The tokenizer is the one that optimum wrote: RoBERTa's "<mask>" takes the space before it in transformers 4 only.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    tokenizer.padding_side = "right"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
    network = transformers.AutoModel.from_pretrained(directory, dtype=torch.float64).eval()
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        states = network(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    return [state.numpy() for state in states], mask.numpy().sum(axis=1)


def pooled(state: np.ndarray, lengths: np.ndarray, pooling: Pooling) -> np.ndarray:
    """Return pooled vectors, [n, d]; zeros for a text without tokens."""
    vectors = np.zeros((len(state), state.shape[2]))
    for row, length in enumerate(lengths):
        if length:
            first, last = {"mean": (0, length), "cls": (0, 1), "last": (length - 1, length)}[pooling]
            vectors[row] = state[row, first:last].mean(axis=0)
    return vectors


def check(bundle: Path, directory: Path, exported: Path) -> None:
    """Compare a bundle's vectors with the full model's, pooled and whitened by numpy."""
    stored = load_file(bundle / "whitening.safetensors")
    with Encoder(bundle) as encoder:
        manifest, gate = encoder.manifest, GATES[encoder.manifest.precision]
        states, lengths = full_model_states(directory, exported, encoder.max_seq_length)
        chosen = [pooled(states[layer], lengths, manifest.pooling) for layer in manifest.layers]
        agreement = compare(encoder.encode(TEXTS), (np.mean(chosen, axis=0) - stored["mean"]) @ stored["W"])
        assert gate.passes(agreement), f"{manifest.pooling} {manifest.precision}: {agreement}"
        assert gate.passes(encoder.verify())


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "gpt2"])
def test_bundles_of_each_family_equal_pytorch(
    family: str, optimum: Optimum, checkpoint: Callable[..., Path], corpus: tuple[str], tmp_path: Path
) -> None:
    """Check every pooling in float32, and mean pooling in the other precisions."""
    directory = checkpoint(family, WIDENED)
    encoder = optimum(directory)
    for pooling in ("mean", "cls", "last"):
        recipe = Recipe(str(encoder), pooling=pooling, dim=DIM, corpus=corpus)
        check(export_bundle(recipe, tmp_path / pooling).path, directory, encoder)
    for precision in ("fp16", "int8"):
        recipe = Recipe(str(encoder), dim=DIM, precision=precision, corpus=corpus)
        check(export_bundle(recipe, tmp_path / precision).path, directory, encoder)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_bundle_of_minilm_equals_pytorch(
    precision: str, real_encoder: Path, minilm_checkpoint: Path, corpus: tuple[str], tmp_path: Path
) -> None:
    """Half precision rounds one weight at a time, in real networks as in small ones."""
    recipe = Recipe(str(real_encoder), dim=DIM, precision=precision, corpus=corpus, max_length=64)
    exported = export_bundle(recipe, tmp_path / "b")
    assert exported.manifest.layers == (6,)
    check(exported.path, minilm_checkpoint, real_encoder)


@pytest.fixture(scope="module")
def real_encoder(optimum: Optimum, minilm_checkpoint: Path) -> Path:
    """Export MiniLM with optimum, which names the outputs of sentence-transformers' models in its own way."""
    encoder = optimum(minilm_checkpoint)
    assert names_of(encoder) == ["token_embeddings", "sentence_embedding"]
    return encoder


def names_of(encoder: Path) -> list[str]:
    graph = onnx.load(encoder / "model.onnx", load_external_data=False).graph
    return [value.name for value in graph.output]


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_older_opset_is_converted(
    family: str, optimum: Optimum, checkpoint: Callable[..., Path], corpus: tuple[str], tmp_path: Path
) -> None:
    directory = checkpoint(family)
    encoder = optimum(directory, "--opset", 14)
    assert [entry.version for entry in onnx.load(encoder / "model.onnx").opset_import if not entry.domain] == [14]
    exported = export_bundle(Recipe(str(encoder), dim=16, corpus=corpus), tmp_path / "b")
    assert exported.manifest.opset >= 18
    check(exported.path, directory, encoder)


def test_layers_are_chosen_from_hidden_state_outputs(
    run_client: Callable[..., None], checkpoint: Callable[..., Path], corpus: tuple[str], tmp_path: Path
) -> None:
    """Outputs have the names of our own graphs; the last hidden state has both of its names."""
    directory = checkpoint("bert")
    encoder = tmp_path / "encoder"
    run_client(Path(__file__).with_name("clients.py"), "hidden_states", directory, encoder)
    assert names_of(encoder) == ["last_hidden_state", *(f"hidden_states.{n}" for n in range(LAYERS + 1))]
    for layers, want in ((None, (1, LAYERS)), ((0,), (0,)), ((2, -1), (2, LAYERS)), ((-1,), (LAYERS,))):
        recipe = Recipe(str(encoder), layers=layers, corpus=corpus)
        exported = export_bundle(recipe, tmp_path / "b", replace=True)
        assert exported.manifest.layers == want
        check(exported.path, directory, encoder)


@pytest.mark.parametrize("widened", [1, WIDENED])
def test_external_weights_are_read(
    widened: int, optimum: Optimum, checkpoint: Callable[..., Path], corpus: tuple[str], tmp_path: Path
) -> None:
    """Constants of nodes are external too; a bundle of a small model has all of its weights in the graph."""
    directory = checkpoint("bert", widened)
    encoder = optimum(directory, FORCE_ONNX_EXTERNAL_DATA="1")
    graph = onnx.load(encoder / "model.onnx", load_external_data=False).graph
    constants = [node.attribute[0].t for node in graph.node if node.op_type == "Constant"]
    assert [tensor for tensor in constants if tensor.data_location == onnx.TensorProto.EXTERNAL]
    assert (encoder / "model.onnx_data").is_file()
    bundle = export_bundle(Recipe(str(encoder), dim=16, corpus=corpus), tmp_path / "b").path
    assert (bundle / "onnx" / "model.onnx_data").is_file() == (widened == WIDENED)
    check(bundle, directory, encoder)
