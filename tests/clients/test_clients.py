"""Bundles opened by the real sentence-transformers, fastembed and optimum, in a virtual environment of their own."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.checkpoints import sentences
from whiten_export.pipeline import export_bundle
from whiten_export.recipe import Recipe
from whiten_runtime import Encoder

pytestmark = pytest.mark.clients

TEXTS = [*sentences(60), "", "a", "long " * 400, "Ünïcödé 日本 👩‍👧 русский", "  spaces  "]


@pytest.fixture(scope="session")
def words_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random vectors for words of the corpus, in GloVe's format."""
    words = sorted({word for sentence in sentences(2000) for word in sentence.lower().split() if word.isalpha()})
    rows = np.random.default_rng(0).normal(size=(len(words), 12))
    path = tmp_path_factory.mktemp("words") / "glove.12d.txt"
    lines = (f"{word} {' '.join(f'{x:.5f}' for x in row)}\n" for word, row in zip(words, rows, strict=True))
    path.write_text("".join(lines), "utf-8")
    return path


@pytest.fixture(scope="session")
def bundles(
    minilm_bundle: Path,
    tmp_path_factory: pytest.TempPathFactory,
    checkpoint: Callable[[str], Path],
    corpus_file: Path,
    words_file: Path,
) -> dict[str, Path]:
    """The real checkpoint; a normalised, cut one; byte-level BPE; word vectors, plain and weighted."""
    folder = tmp_path_factory.mktemp("for-clients")
    corpus = (str(corpus_file),)
    recipes = {
        "normalised": Recipe("minilm", layers=(1,), max_sentences=2000, dim=128, normalize=True, max_length=64),
        "roberta": Recipe(str(checkpoint("roberta")), corpus=corpus),
        "words": Recipe(str(words_file), corpus=corpus),
        "sif": Recipe(str(words_file), pooling="sif", corpus=corpus),
    }
    made = {name: export_bundle(recipe, folder / name).path for name, recipe in recipes.items()}
    return made | {"minilm": minilm_bundle}


@pytest.mark.parametrize("client", ["sentence_transformers", "fastembed", "optimum"])
@pytest.mark.parametrize("name", ["minilm", "normalised", "roberta", "words", "sif"])
def test_a_client_gives_our_vectors(
    client: str, name: str, run_client: Callable[..., None], bundles: dict[str, Path], tmp_path: Path
) -> None:
    texts, out = tmp_path / "texts.json", tmp_path / "vectors.npy"
    texts.write_text(json.dumps(TEXTS), "utf-8")
    before = sorted(bundles[name].rglob("*"))
    run_client(client, bundles[name], texts, out)
    with Encoder(bundles[name]) as encoder:
        ours = encoder.encode(TEXTS)
    theirs = np.load(out)
    assert theirs.shape == ours.shape
    difference = np.abs(theirs - ours).max(axis=1) / np.linalg.norm(ours, axis=1)
    assert difference.max() <= (1e-6 if name == "minilm" else 1e-5), difference.max()
    assert sorted(bundles[name].rglob("*")) == before
