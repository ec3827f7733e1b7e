"""Test int8 and float16 bundles of the real checkpoint, and of small ones."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.stats import spearmanr

from support.corpus import sentences
from whiten import Encoder
from whiten_export.export import export_bundle
from whiten_export.recipe import Recipe
from whiten_runtime.bundle.bundle import MODEL_FILE, WHITENING_FILE
from whiten_runtime.bundle.graph import scan_graph
from whiten_runtime.bundle.manifest import Manifest, Precision
from whiten_runtime.bundle.parity import GATES, compare

Opened = Callable[[Precision], Encoder]


@pytest.fixture(scope="module")
def minilm(minilm_bundle: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Return a function that opens layers 1 and 6 of the real checkpoint at a precision."""

    @cache
    def opened(precision: Precision) -> Encoder:
        if precision == "fp32":
            return Encoder(minilm_bundle)
        if precision == "int8":
            return Encoder(request.getfixturevalue("minilm_int8_bundle"))
        recipe = Recipe("minilm", layers=(1, 6), whitening="pca", max_sentences=2000, precision=precision)
        return Encoder(export_bundle(recipe, tmp_path_factory.mktemp("precisions") / precision).path)

    return opened


@pytest.mark.slow
def test_int8_of_the_real_checkpoint(minilm: Opened) -> None:
    check_size_and_agreement(minilm, "int8", 0.30, 0.997)
    check_batches(minilm("int8"))


@pytest.mark.slow
def test_float16_of_the_real_checkpoint(minilm: Opened) -> None:
    check_size_and_agreement(minilm, "fp16", 0.52, 0.9999)


def graph_bytes(manifest: Manifest) -> int:
    """Bytes of the graph and its weights."""
    return sum(record.bytes for name, record in manifest.files.items() if name.startswith("onnx/"))


def check_size_and_agreement(minilm: Opened, precision: Precision, most: float, least: float) -> None:
    """Compare a bundle with that of fp32: its share of the bytes, its whitening, and its vectors of real sentences."""
    assert graph_bytes(minilm(precision).manifest) / graph_bytes(minilm("fp32").manifest) < most
    texts = sentences(4000)[2000:2500]
    digests = {minilm(which).manifest.files["tokenizer.json"].sha256 for which in ("fp32", precision)}
    assert len(digests) == 1
    own, full = (load_file(minilm(which)._bundle.path / WHITENING_FILE) for which in (precision, "fp32"))
    for name in ("mean", "W", "eigenvalues", "covariance"):  # so that vectors of two precisions can be compared
        np.testing.assert_array_equal(own[name], full[name])
    shift = np.linalg.norm((own["corpus_mean"] - full["corpus_mean"]) @ full["W"]) / np.sqrt(384)
    assert 0 < shift < 0.2
    agreement = compare(minilm(precision).encode(texts), minilm("fp32").encode(texts))
    assert agreement.mean_cosine > least, str(agreement)
    assert GATES[precision].passes(agreement)
    assert GATES[precision].passes(minilm(precision).verify())


def check_batches(encoder: Encoder) -> None:
    """Usual dynamic int8 has one scale per tensor, so that a text's vector differs by 2 % in another batch."""
    texts = sentences(400)
    alone = encoder.encode(texts, batch_size=1)
    norms = np.linalg.norm(alone, axis=1)
    generator = np.random.default_rng(0)
    for batch_size in (2, 7, 33):
        order = generator.permutation(len(texts))
        mixed = np.concatenate(
            [encoder.encode([texts[i] for i in part], batch_size=batch_size) for part in np.array_split(order, 9)]
        )
        assert (np.abs(mixed - alone[order]).max(axis=1) / norms[order]).max() <= 1e-6


@pytest.mark.slow
def test_int8_and_float16_keep_spearman_on_sts_benchmark(minilm: Opened, public_data: Path) -> None:
    rows = [line.split("\t") for line in (public_data / "sts" / "sts-b-test.csv").read_text("utf-8").splitlines()]
    gold, scores = [float(row[4]) for row in rows], {}
    for precision in ("fp32", "fp16", "int8"):
        encoder = minilm(precision)
        first, second = (encoder.encode([row[c] for row in rows], normalize_embeddings=True) for c in (5, 6))
        scores[precision] = 100 * spearmanr((first * second).sum(axis=1), gold).statistic
    assert abs(scores["int8"] - scores["fp32"]) <= 0.2, scores
    assert abs(scores["fp16"] - scores["fp32"]) <= 0.01, scores


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_int8_and_float16_of_a_small_network_pass_the_gate(
    precision: Precision, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Random networks of width 32 amplify noise more than real ones: the gate is applied without whitening.

    Other families are in tests/parity/test_families.py.
    """
    recipe = Recipe(str(checkpoint("bert")), layers=(1, 4), whitening=None, precision=precision)
    bundle = export_bundle(recipe, tmp_path / "bundle")
    assert bundle.manifest.precision == precision
    integers = ("", "MatMulInteger") in scan_graph(bundle.path / MODEL_FILE).operators
    assert integers == (precision == "int8")


@pytest.mark.slow
def test_lookup_table_in_int8_is_small_and_accurate(tmp_path: Path) -> None:
    recipe = Recipe("minilm", layers=(0,), whitening="pca", max_sentences=2000, precision="int8")
    manifest = export_bundle(recipe, tmp_path / "bundle").manifest
    assert graph_bytes(manifest) < 15e6
    assert manifest.parity is not None
    assert manifest.parity.mean_cosine > 0.999
