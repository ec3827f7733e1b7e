"""Test `--round-to int8` on the real checkpoint, and on folders of sentence-transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from support.cli import ok, refused
from support.corpus import sentences
from support.graphs import default_session
from support.once import once
from support.published import save_published
from whiten import Encoder
from whiten_runtime.bundle.bundle import MODEL_FILE
from whiten_runtime.bundle.parity import gate_of
from whiten_runtime.bundle.ranges import as_int8, to_steps
from whiten_runtime.inference.vectors import row_cosines, similarity_matrix

pytestmark = pytest.mark.slow

TEXTS = [*sentences(300), "", "long " * 600, "Ünïcödé 日本 👩‍👧"]
WHITENED = ("--layers", "1,6", "--whitening", "pca", "--max-sentences", "2000")


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(path: Path) -> None:
        ok("export", "minilm", *WHITENED, "--round-to", "int8", "--out", path)

    return once(tmp_path_factory, "minilm-int8vectors", make)


def test_whitened_vectors_are_the_float_ones_rounded(rounded: Path, minilm_bundle: Path) -> None:
    with Encoder(rounded) as encoder, Encoder(minilm_bundle) as plain:
        vectors, want = encoder.encode(TEXTS), plain.encode(TEXTS)
        agreement = encoder.verify()
    exact = to_steps(want)
    assert np.abs(vectors - exact).max() < 0.5 + 5e-3
    assert (vectors != np.rint(exact)).mean() < 1e-3
    assert 1 - row_cosines(vectors, want).min() < 3e-4
    difference = similarity_matrix(vectors, vectors, "cosine") - similarity_matrix(want, want, "cosine")
    assert np.abs(difference).max() < 5e-3
    assert np.sqrt(np.square(difference).mean()) < 1e-3
    assert gate_of("fp32", "int8").passes(agreement)
    assert agreement.max_difference < 1e-6
    assert agreement.stepped is not None
    assert agreement.stepped < 1e-3


def test_default_options_of_onnxruntime_give_the_same_steps(rounded: Path) -> None:
    """Other programs create sessions without any option."""
    session = default_session(rounded / MODEL_FILE)
    with Encoder(rounded) as encoder:
        for text in TEXTS[:50]:
            ids = np.array([encoder._tokenizer.cut(encoder._tokenizer.tokenize([text])[0])])
            finished, tokens = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
            np.testing.assert_array_equal(as_int8(tokens[:, 0]), finished)
            assert (finished[0] != encoder.encode(text)).sum() <= 2
            assert np.abs(finished[0] - encoder.encode(text)).max() <= 1


@pytest.mark.filterwarnings("ignore")
def test_published_model_keeps_its_cosines(minilm_checkpoint: Path, tmp_path: Path) -> None:
    result = ok("export", "minilm", "--round-to", "int8", "--out", tmp_path / "b", "--json")
    manifest = json.loads(result.stdout)["manifest"]
    assert (manifest["vectors"], manifest["normalize"], manifest["whitening"]) == ("int8", False, None)
    assert manifest["published"]["min_cosine"] > 0.999999
    theirs = SentenceTransformer(str(minilm_checkpoint), device="cpu").encode(TEXTS)
    with Encoder(tmp_path / "b") as encoder:
        vectors = encoder.encode(TEXTS)
    assert 1 - row_cosines(vectors, theirs).min() < 2e-4
    with np.errstate(all="raise"):
        assert np.abs(vectors - to_steps(theirs)).max() < 0.5 + 5e-3
    ok("verify", tmp_path / "b")


@pytest.mark.parametrize("similarity", ["dot", "euclidean", "manhattan"])
def test_models_of_other_similarities_are_refused(tmp_path: Path, similarity: str) -> None:
    folder = save_published("bge-small", tmp_path / "model")
    settings = folder / "config_sentence_transformers.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"similarity_fn_name": similarity}))
    want = f"vectors of int8 keep cosines alone, but 'model' is compared by {similarity}; leave round-to out"
    assert want in refused("export", folder, "--round-to", "int8", "--out", tmp_path / "b")
    assert not (tmp_path / "b").exists()
