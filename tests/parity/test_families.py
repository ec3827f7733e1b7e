"""Every family against the full PyTorch model, pooled by numpy, with other batches than the export's own gate.

The real command runs once for each family. The other cases start from the same traced graph, which holds all layers:
tracing takes most of an export's time.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.numpy import load_file
from torch import nn

from support.checkpoints import FAMILIES, LAYERS, MAX_LENGTH, WIDTH, sentences
from support.nasty_texts import NASTY
from whiten_export.cli import export
from whiten_export.pipeline import export_bundle
from whiten_export.recipe import Recipe
from whiten_export.sources import families, pytorch
from whiten_runtime import Encoder, UsageError
from whiten_runtime.manifest import Pooling
from whiten_runtime.parity import GATES, compare

TEXTS = ["", "a", *sentences(40), "word " * 100, *NASTY]
WIDENED = 4
CASES: list[tuple[tuple[int, ...], Pooling]] = [
    ((0,), "mean"),
    ((1,), "mean"),
    ((1,), "cls"),
    ((1, LAYERS), "mean"),
    ((1, LAYERS), "cls"),
    ((LAYERS,), "mean"),
    ((LAYERS,), "cls"),
    ((LAYERS,), "last"),
]


def loaded(directory: Path) -> tuple[transformers.PreTrainedTokenizerBase, nn.Module]:
    """What users of PyTorch would load."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    config = transformers.AutoConfig.from_pretrained(directory)
    kind = transformers.T5EncoderModel if config.model_type == "t5" else transformers.AutoModel
    return tokenizer, kind.from_pretrained(directory, dtype=torch.float64).eval()


def full_model_vectors(directory: Path, layers: tuple[int, ...], pooling: Pooling) -> np.ndarray:
    """transformers' own padded batch through the untouched model, pooled and averaged by numpy in float64."""
    tokenizer, network = loaded(directory)
    # MobileBERT mixes its neighbours' embeddings into a token's, padding's too: there every text is a batch of its own.
    parts = [[text] for text in TEXTS] if network.config.model_type == "mobilebert" else [TEXTS]
    return np.concatenate([pooled_batch(tokenizer, network, part, layers, pooling) for part in parts])


def pooled_batch(
    tokenizer: transformers.PreTrainedTokenizerBase,
    network: nn.Module,
    texts: list[str],
    layers: tuple[int, ...],
    pooling: Pooling,
) -> np.ndarray:
    batch = tokenizer(texts, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
    with torch.no_grad():
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        states = [state.numpy() for state in network(**inputs, output_hidden_states=True).hidden_states]
    assert len(states) == LAYERS + 1
    rows = []
    for text, length in enumerate(batch["attention_mask"].numpy().sum(axis=1)):
        chosen = {"mean": slice(0, length), "cls": slice(0, 1), "last": slice(length - 1, length)}[pooling]
        part = [state[text, chosen].mean(axis=0) if length else np.zeros(state.shape[2]) for state in states]
        rows.append(np.mean([part[layer] for layer in layers], axis=0))
    return np.stack(rows)


def wanted(bundle: Path, directory: Path, layers: tuple[int, ...], pooling: Pooling) -> np.ndarray:
    stored = load_file(bundle / "whitening.safetensors")
    whitened: np.ndarray = (full_model_vectors(directory, layers, pooling) - stored["mean"]) @ stored["W"]
    return whitened


@pytest.fixture(scope="module")
def traced_once() -> Iterator[None]:
    """Traces a checkpoint once, with all layers."""
    real, graphs = pytorch.trace, {}

    def trace(network: nn.Module, layers: tuple[int, ...]) -> ir.Model:
        place = network.config._name_or_path
        if place not in graphs:
            graphs[place] = ir.to_proto(real(network, tuple(range(LAYERS + 1)))).SerializeToString()
        model = ir.from_proto(onnx.ModelProto.FromString(graphs[place]))
        model.graph.outputs[:] = [model.graph.outputs[layer] for layer in layers]
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytorch, "trace", trace)
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_the_real_command(family: str, checkpoint: Callable[[str], Path], corpus_file: Path, tmp_path: Path) -> None:
    directory, out = checkpoint(family), tmp_path / "bundle"
    arguments = [directory, "--layers", "1,-1", "--corpus", corpus_file, "--out", out]
    result = CliRunner().invoke(export, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    known = FAMILIES[family].model_type in families.FAMILIES
    assert ("has not been tried" in result.stderr) != known
    with Encoder(out) as encoder:
        assert encoder.max_seq_length == MAX_LENGTH
        want = wanted(out, directory, (1, LAYERS), "mean")
        for batch_size in (1, 7, None):
            agreement = compare(encoder.encode(TEXTS, batch_size=batch_size), want)
            assert GATES["fp32"].passes(agreement), str(agreement)
        assert np.isfinite(encoder.encode("")).all()


@pytest.mark.usefixtures("traced_once")
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_and_poolings(family: str, checkpoint: Callable[[str], Path], corpus_file: Path, tmp_path: Path) -> None:
    directory = checkpoint(family)
    for layers, pooling in CASES:
        # A single token varies little in its last directions: there float32 PyTorch itself misses the gate.
        dim = WIDTH if pooling == "mean" else WIDTH // 2
        recipe = Recipe(str(directory), layers=layers, pooling=pooling, dim=dim, corpus=(str(corpus_file),))
        if (family, pooling) == ("llama", "cls"):  # it sees only itself, and is <s> in every text
            with pytest.raises(UsageError, match="first token never changes"):
                export_bundle(recipe, tmp_path / "bundle", replace=True)
            continue
        bundle = export_bundle(recipe, tmp_path / "bundle", replace=True).path
        with Encoder(bundle) as encoder:
            agreement = compare(encoder.encode(TEXTS), wanted(bundle, directory, layers, pooling))
        assert GATES["fp32"].passes(agreement), f"{layers} {pooling}: {agreement}"


@pytest.mark.usefixtures("traced_once")
@pytest.mark.parametrize("family", FAMILIES)
def test_precisions(family: str, checkpoint: Callable[[str, int], Path], tmp_path: Path) -> None:
    """Wider networks: at 32, the noise of 8 bits does not average out."""
    directory = checkpoint(family, WIDENED)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(sentences(800)), "utf-8")
    for precision in ("fp16", "int8"):
        for layers in ((0,), (1, LAYERS)):
            recipe = Recipe(str(directory), layers=layers, dim=32, precision=precision, corpus=(str(corpus),))
            bundle = export_bundle(recipe, tmp_path / "bundle", replace=True).path
            with Encoder(bundle) as encoder:
                agreement = compare(encoder.encode(TEXTS), wanted(bundle, directory, layers, "mean"))
            assert GATES[precision].passes(agreement), f"{precision} {layers}: {agreement}"
