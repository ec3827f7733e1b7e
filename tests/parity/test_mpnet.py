"""Test all-mpnet-base-v2, a second real model: 12 layers, relative positions, other special tokens."""

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from support.cli import ok
from support.corpus import sentences
from support.once import once
from support.real_weights import real_weights
from whiten import Encoder
from whiten_runtime.bundle.manifest import read_manifest

pytestmark = pytest.mark.slow

TEXTS = [*sentences(60), "", "long " * 600, "Ünïcödé 日本 👩‍👧"]


@pytest.fixture(scope="module")
def model() -> Path:
    return real_weights("all-mpnet-base-v2")


@pytest.fixture(scope="module")
def bundle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "all-mpnet", lambda path: ok("export", model, "--out", path))


@pytest.mark.filterwarnings("ignore")
def test_vectors_equal_sentence_transformers(model: Path, bundle: Path) -> None:
    theirs = SentenceTransformer(str(model), device="cpu").encode(TEXTS, batch_size=1)
    with Encoder(bundle) as encoder:
        np.testing.assert_allclose(encoder.encode(TEXTS), theirs, rtol=0, atol=1e-6)
    manifest = read_manifest(bundle)
    assert manifest.published is not None
    assert manifest.published.max_difference < 1e-6
    assert (manifest.layers, manifest.pooling, manifest.normalize, manifest.max_seq_length) == (
        (12,),
        "mean",
        True,
        384,
    )


def test_similarity_has_the_figure_that_its_authors_publish(bundle: Path, public_data: Path) -> None:
    printed = ok("eval", "sts", bundle, "--data", public_data, "--tasks", "STS-B", "--json").stdout
    (score,) = json.loads(printed)["bundles"]
    assert score["averages"]["mean"] == pytest.approx(83.42, abs=0.01)
