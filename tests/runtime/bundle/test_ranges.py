"""Test ranges of coordinates against vectors drawn from a bundle's moments."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from support.bundles import copy_bundle, rewrite_file
from support.corpus import sentences
from whiten import BundleError, Encoder, UsageError, VectorWhitener
from whiten_runtime.bundle.bundle import WHITENING_FILE
from whiten_runtime.inference.vectors import DEVIATIONS, OutputMoments

GENERATOR = np.random.default_rng(0)


def drawn(bundle: Path, count: int = 20_000) -> np.ndarray:
    """Draw finished vectors: normal ones with the stored moments before whitening, then whitened."""
    stored = load_file(bundle / WHITENING_FILE)
    rows = GENERATOR.multivariate_normal(stored["corpus_mean"], stored["covariance"], count, method="eigh")
    return np.asarray((rows - stored["mean"]) @ stored["W"])


@pytest.mark.parametrize("bundle", ["bundle-v1", "bundle-v1-int8"])
@pytest.mark.parametrize("width", [None, 8])
@pytest.mark.parametrize("normalized", [False, True])
def test_ranges_are_mean_and_deviations_of_the_corpus(
    golden: Path, bundle: str, width: int | None, normalized: bool
) -> None:
    """The bundle of int8 normalises in its graph."""
    vectors = drawn(golden / bundle)[:, :width]
    with Encoder(golden / bundle) as encoder:
        found = encoder.ranges(normalize_embeddings=normalized, truncate_dim=width)
        if normalized or encoder.manifest.normalize:
            vectors /= np.sqrt(np.square(vectors).sum(axis=1).mean())
    assert (found.dtype, found.shape) == (np.float32, (2, vectors.shape[1]))
    deviation = vectors.std(axis=0)
    np.testing.assert_allclose(found.mean(axis=0), vectors.mean(axis=0), atol=0.05 * deviation.max())
    np.testing.assert_allclose(found[1] - found[0], 2 * DEVIATIONS * deviation, rtol=0.05)


def test_ranges_hold_the_vectors_of_the_corpus(golden: Path) -> None:
    with Encoder(golden / "bundle-v1") as encoder:
        for options in ({}, {"normalize_embeddings": True}, {"truncate_dim": 8, "normalize_embeddings": True}):
            lower, upper = encoder.ranges(**options)
            vectors = encoder.encode(sentences(400), **options)
            assert ((lower <= vectors) & (vectors <= upper)).mean() > 0.999


def test_a_whitener_of_vectors_has_ranges_too(golden: Path) -> None:
    rows = GENERATOR.normal(size=(5, 12)).astype(np.float32)
    with VectorWhitener(golden / "bundle-v1-vectors") as whitener:
        ranges, vectors = whitener.ranges(), whitener.transform(rows)
        codes = whitener.transform(rows, precision="uint8")
        np.testing.assert_array_equal(codes, whitener.transform(rows, precision="uint8", ranges=ranges))
        assert (whitener.transform(rows[0], precision="binary").shape, codes.dtype) == (
            (-(-vectors.shape[1] // 8),),
            "u1",
        )
        steps = (ranges[1] - ranges[0]) / 255
        inside = (vectors > ranges[0]) & (vectors < ranges[1])
        assert (np.abs(ranges[0] + steps * (codes + 0.5) - vectors) <= 0.51 * steps)[inside].all()


def test_bundles_without_moments_say_what_to_pass(golden: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(golden / "bundle-v1", tmp_path)
    stored = load_file(bundle / WHITENING_FILE)
    rewrite_file(bundle, WHITENING_FILE, save({name: stored[name] for name in ("mean", "W")}))  # as older bundles
    bare = copy_bundle(golden / "bundle-v1", tmp_path / "none", whitening=None)
    with Encoder(bare) as encoder, pytest.raises(UsageError, match="stores no moments"):
        encoder.ranges()
    with Encoder(bundle) as encoder:
        for ask in (encoder.ranges, lambda: encoder.encode("a", precision="int8"), lambda: encode_iter(encoder)):
            with pytest.raises(UsageError, match=r"stores no moments .* in Python pass ranges, float32 \[2, 32\]"):
                ask()
        assert encoder.encode("a", precision="binary").shape == (4,)
        assert encoder.encode("a", precision="int8", ranges=np.array([[-1] * 32, [1] * 32])).dtype == np.int8


def encode_iter(encoder: Encoder) -> object:
    return encoder.encode_iter(["a"], precision="uint8")


@pytest.mark.parametrize("change", ["cut", "shape", "nan"])
def test_damaged_moments_are_refused(golden: Path, tmp_path: Path, change: str) -> None:
    bundle = copy_bundle(golden / "bundle-v1", tmp_path)
    stored = load_file(bundle / WHITENING_FILE)
    if change == "shape":
        stored["covariance"] = stored["covariance"][:5]
    elif change == "nan":
        stored["corpus_mean"][3] = np.nan
    content = save({name: np.ascontiguousarray(array) for name, array in stored.items()})
    rewrite_file(bundle, WHITENING_FILE, content[:-9] if change == "cut" else content)
    with pytest.raises(BundleError, match=f"{WHITENING_FILE}: .*; copy the bundle again"):
        Encoder(bundle)


@pytest.mark.parametrize("change", ["renamed", "removed", "replaced", "written", "a pipe"])
def test_ranges_need_no_file_once_the_bundle_is_open(golden: Path, tmp_path: Path, change: str) -> None:
    for name, opener in (("bundle-v1", Encoder), ("bundle-v1-vectors", VectorWhitener)):
        bundle = copy_bundle(golden / name, tmp_path / name)
        with opener(golden / name) as opened:
            want = opened.ranges()
        with opener(bundle) as opened:
            if change == "renamed":
                bundle.rename(tmp_path / name / "old")
            elif change == "written":
                (bundle / WHITENING_FILE).write_bytes(b"")
            elif change == "replaced":
                shutil.rmtree(bundle)
                shutil.copytree(golden / "bundle-v1-int8", bundle)
            else:
                (bundle / WHITENING_FILE).unlink()
                if change == "a pipe":
                    os.mkfifo(bundle / WHITENING_FILE)
            np.testing.assert_array_equal(opened.ranges(), want)


def test_vectors_of_norm_zero_have_ranges() -> None:
    none = OutputMoments(np.zeros(2), np.zeros(2))
    assert none.ranges(2, True).tolist() == [[0, 0], [0, 0]]


def test_codes_are_not_whitened(golden: Path) -> None:
    with VectorWhitener(golden / "bundle-v1-vectors") as whitener:
        rows = np.eye(3, whitener.width, dtype=np.int8)
        np.testing.assert_array_equal(whitener.transform(rows.tolist()), whitener.transform(rows.astype(np.float32)))
        for codes in (rows, rows.view(np.uint8), rows[0], rows.astype(bool)):
            with pytest.raises(UsageError, match=f"vectors: has dtype {codes.dtype}.*; wanted vectors of precision"):
                whitener.transform(codes)
        whitened = whitener.transform(rows.astype(np.float32), precision="int8")
        with pytest.raises(UsageError, match="a: has dtype int8"):
            whitener.similarity(whitened, whitened)
