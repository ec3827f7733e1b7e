"""Every family against the full PyTorch model, pooled by numpy, with other batches than the export's own gate."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file

from support.checkpoints import LAYERS, MAX_LENGTH, sentences
from whiten_export.pipeline import export_bundle
from whiten_export.recipe import Recipe
from whiten_runtime import Encoder
from whiten_runtime.manifest import Pooling
from whiten_runtime.parity import GATES, compare

TEXTS = ["", "a", *sentences(40), "word " * 100, "Ünïcödé 日本 👩‍👧 русский", "  spaces  "]
CASES: list[tuple[tuple[int, ...], Pooling]] = [
    ((0,), "mean"),
    ((1,), "cls"),
    ((1, LAYERS), "mean"),
    ((0, 2, LAYERS), "cls"),
    ((LAYERS,), "mean"),
]


def full_model_vectors(directory: Path, layers: tuple[int, ...], pooling: Pooling) -> np.ndarray:
    """transformers' own padded batch through the untouched model, pooled and averaged by numpy in float64."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
    network = transformers.AutoModel.from_pretrained(directory, dtype=torch.float64).eval()
    with torch.no_grad():
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        states = [state.numpy() for state in network(**inputs, output_hidden_states=True).hidden_states]
    assert len(states) == LAYERS + 1
    mask = batch["attention_mask"].numpy()[:, :, None]
    pooled = [
        states[layer][:, 0] if pooling == "cls" else (states[layer] * mask).sum(axis=1) / mask.sum(axis=1)
        for layer in layers
    ]
    return np.mean(pooled, axis=0)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
@pytest.mark.parametrize(("layers", "pooling"), CASES)
def test_a_bundle_is_the_full_model(
    family: str,
    layers: tuple[int, ...],
    pooling: Pooling,
    checkpoint: Callable[[str], Path],
    corpus_file: Path,
    tmp_path: Path,
) -> None:
    directory = checkpoint(family)
    recipe = Recipe(str(directory), layers=layers, pooling=pooling, corpus=(str(corpus_file),))
    bundle = export_bundle(recipe, tmp_path / "bundle").path
    stored = load_file(bundle / "whitening.safetensors")
    want = (full_model_vectors(directory, layers, pooling) - stored["mean"]) @ stored["W"]
    with Encoder(bundle) as encoder:
        assert encoder.max_seq_length == MAX_LENGTH
        for batch_size in (1, 7, None):
            agreement = compare(encoder.encode(TEXTS, batch_size=batch_size), want)
            assert GATES["fp32"].passes(agreement), str(agreement)
