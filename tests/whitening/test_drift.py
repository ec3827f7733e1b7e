"""Test drift on samples whose distance is known."""

import shutil
from collections.abc import Callable
from copy import copy
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save

from support.bundles import change_bundle, copy_bundle, edit_manifest, rewrite_file
from support.cli import ok
from support.corpus import sentences
from whiten import BundleError, DriftMonitor, Encoder, UsageError
from whiten_runtime.bundle.space import space_of
from whiten_whitening.drift import Drift

WIDTH = 8


@pytest.fixture(scope="module")
def corpus() -> np.ndarray:
    generator = np.random.default_rng(0)
    mixed = generator.normal(size=(12000, WIDTH)) @ generator.normal(size=(WIDTH, WIDTH))
    return (mixed + 5 * generator.normal(size=WIDTH)).astype(np.float32)


def bundle_of(corpus: np.ndarray, folder: Path, *options: str) -> Path:
    folder.mkdir(exist_ok=True)
    np.save(folder / "corpus.npy", corpus[:6000].astype(np.float32))
    ok("export", "x", "--from-vectors", folder / "corpus.npy", "--out", folder / "b", *options)
    return folder / "b"


@pytest.fixture(scope="module")
def bundle(corpus: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(corpus, tmp_path_factory.mktemp("drift"))


@pytest.mark.parametrize(
    "options",
    [(), ("--dim", "5"), ("--whitening", "zca"), ("--whitening", "partial"), ("--shrinkage", "0.3")],
)
def test_distance_does_not_depend_on_the_whitening(
    corpus: np.ndarray, tmp_path: Path, options: tuple[str, ...]
) -> None:
    bundle = bundle_of(corpus, tmp_path, *options)
    own, new = (DriftMonitor(bundle).update(part, unwhitened=True).report() for part in (corpus[:6000], corpus[6000:]))
    assert own.mean_shift == pytest.approx(0, abs=1e-3)
    assert own.spectrum_ratio == pytest.approx(1, abs=1e-4)
    assert new.verdict == "close"
    assert new.mean_shift < 0.03


def test_known_shift_and_spread_are_measured(corpus: np.ndarray, bundle: Path) -> None:
    monitor = DriftMonitor(bundle)
    white = np.random.default_rng(1).normal(size=(20000, WIDTH))
    found = monitor.update(1.5 * white + 0.7).report()
    assert found.mean_shift == pytest.approx(0.7, abs=0.02)
    assert found.spectrum_ratio == pytest.approx(2.25, rel=0.03)
    assert found.average_cosines[1] > 0.1
    assert found.verdict == "drifting"
    monitor.reset()
    assert monitor.update(white + 0.1).report().verdict == "drifting"


def test_harm_by_a_shared_direction_says_what_would_fit(corpus: np.ndarray, bundle: Path) -> None:
    """Both figures are better than without the map, so the sentence says which is still too high."""
    white = np.random.default_rng(1).normal(size=(20000, WIDTH))
    found = DriftMonitor(bundle).update(white + 1.2).report()
    assert found.verdict == "harmful"
    assert found.iso_scores[1] > found.iso_scores[0]
    assert found.average_cosines[1] < found.average_cosines[0]
    assert "; a whitening that fits leaves an average cosine below 0.37); fit it again" in str(found)


def test_a_fit_for_an_index_that_cannot_come_nearer(corpus: np.ndarray, bundle: Path, tmp_path: Path) -> None:
    """A corpus that has the texts of today, and many more of an index, which the vectors are aligned with."""
    today = corpus[:300] + np.float32(0.7)
    whole = bundle_of(np.concatenate([corpus[:5700], today]), tmp_path)
    assert DriftMonitor(whole).update(today, unwhitened=True).report().verdict == "drifting"
    aligned = {"space": "0" * 16, "median_cosine": 0.95, "self_recall": 1.0, "sentences": 6000}
    for path in (whole, copy_bundle(bundle, tmp_path)):
        edit_manifest(path, lambda fields: fields["whitening"].update(alignment=aligned))
    again = DriftMonitor(whole).update(today, unwhitened=True).report()
    assert again.verdict == "refit changes little"
    before = DriftMonitor(tmp_path / "copy").update(np.tile(today, (20, 1)), unwhitened=True).report()
    assert before.verdict == "drifting"


def test_batches_and_merged_monitors_equal_one_update(corpus: np.ndarray, bundle: Path) -> None:
    whole = DriftMonitor(bundle).update(corpus, unwhitened=True).report()
    parts = DriftMonitor(bundle), DriftMonitor(bundle)
    for index, part in enumerate(np.array_split(corpus, 7)):
        parts[index % 2].update(part, unwhitened=True)
    both = parts[0].merge(parts[1]).report()
    assert both.n == whole.n
    np.testing.assert_allclose(
        [both.mean_shift**2, both.spectrum_ratio, *both.iso_scores],
        [whole.mean_shift**2, whole.spectrum_ratio, *whole.iso_scores],
        atol=1e-9,
    )


def test_few_vectors_raise_no_alarm(corpus: np.ndarray, bundle: Path) -> None:
    """Chance moves the mean of 100 vectors by a tenth of a standard deviation in each direction."""
    verdicts = [
        DriftMonitor(bundle).update(corpus[6000 + start : 6100 + start], unwhitened=True).report().verdict
        for start in range(0, 6000, 100)
    ]
    assert verdicts.count("close") >= 0.9 * len(verdicts)


@pytest.mark.parametrize("options", [("--shrinkage", "oas"), ("--dim", "3"), ("--shrinkage", "0.2")])
@pytest.mark.parametrize("n", [7, 12, 40, 160])
def test_small_corpus_is_close_to_itself_and_to_new_samples(tmp_path: Path, options: tuple[str, ...], n: int) -> None:
    if options[0] == "--dim" and n < 12:
        options = ("--shrinkage", "oas")
    mixing = np.random.default_rng(3).normal(size=(WIDTH, WIDTH))
    for seed in range(5):
        corpus = np.random.default_rng(seed).normal(size=(n + 2000, WIDTH)) @ mixing
        bundle = bundle_of(corpus[:n], tmp_path / str(seed), *options)
        own = np.tile(corpus[:n].astype(np.float32), (1 + 100 // n, 1))
        for vectors in (own, corpus[n:]):
            found = DriftMonitor(bundle).update(vectors, unwhitened=True).report()
            allowed = ("too few",) if n < 16 else ("close", "drifting") if n < 100 else ("close",)
            assert found.verdict in allowed, (seed, found)
            assert ("too few for 8 dimensions" in str(found)) == (n < 16)


@pytest.mark.slow
def test_lower_precision_is_not_drift(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    texts = sentences(3000)
    (tmp_path / "c.txt").write_text("\n".join(texts) + "\n", "utf-8")
    for precision in ("fp32", "fp16"):
        options = ("--layers", "0,-1", "--precision", precision, "--dim", 16, "--corpus", tmp_path / "c.txt")
        ok("export", checkpoint("bert"), *options, "--out", tmp_path / precision)
        with Encoder(tmp_path / precision) as encoder:
            found = DriftMonitor(tmp_path / precision).update(encoder.encode(texts)).report()
        assert found.mean_shift < 0.02
        assert found.verdict == "close"


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.zeros((3, 5)), "wanted numbers .n, 8."),
        (np.zeros(8), "wanted numbers"),
        (np.array([["a"] * 8]), "wanted numbers"),
        ([[1.0, 2.0], [3.0]], "not rows of one length"),
        (np.array([[0.0] * 8, [np.nan] * 8]), "vectors.1. is not finite"),
        (np.eye(8, dtype=np.int8), "vectors: has dtype int8.*; wanted vectors of precision float32"),
        (np.eye(8, dtype=np.uint8), "vectors: has dtype uint8"),
        (np.eye(8, dtype=bool), "vectors: has dtype bool"),
    ],
)
def test_invalid_vectors_are_refused(bundle: Path, vectors: np.ndarray, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DriftMonitor(bundle).update(vectors)


POOL = np.concatenate([np.eye(WIDTH), 3 * np.eye(WIDTH)[:2] + 0.1, np.zeros((1, WIDTH)), np.full((1, WIDTH), 0.7)])
"""Vectors of length 1, others of equal length, zeros, and one that is drawn again and again."""


@pytest.fixture(scope="module")
def monitor(bundle: Path) -> Callable[[], DriftMonitor]:
    """Return a function that makes a monitor of one bundle, which is opened once."""
    opened = DriftMonitor(bundle)
    return lambda: copy(opened)


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.lists(st.integers(0, WIDTH - 1), max_size=130),
        st.lists(st.integers(0, len(POOL) - 1), max_size=130),
        st.integers(0, 130).map(lambda count: [len(POOL) - 1] * count),
    ),
    st.lists(st.integers(0, 130), max_size=8),
    st.integers(0, 130),
)
def test_the_report_is_the_same_however_vectors_are_cut_into_batches(
    monitor: Callable[[], DriftMonitor], places: list[int], cuts: list[int], apart: int
) -> None:
    vectors = POOL[places].astype(np.float32)
    one, other, every = monitor(), monitor(), monitor()
    for start, end in pairwise(sorted({0, *cuts, apart, len(vectors)})):
        (one if start < apart else other).update(vectors[start:end])
    found, whole = map(reported, (one.merge(other), every.update(vectors)))
    if isinstance(found, str) or isinstance(whole, str):
        assert found == whole
        assert len(vectors) < 2 or set(places) <= set(range(WIDTH))
    else:
        assert found.verdict == whole.verdict
        numbers = [np.hstack(list(vars(drift).values())[1:]) for drift in (found, whole)]  # the verdict is the first
        np.testing.assert_allclose(*numbers, rtol=1e-6, atol=1e-6)


def reported(monitor: DriftMonitor) -> Drift | str:
    """Return the report, or the error."""
    try:
        return monitor.report()
    except UsageError as error:
        return str(error)


def test_equal_texts_are_not_taken_for_normalised_vectors(tiny: Encoder, tiny_bundle: Path) -> None:
    monitor = DriftMonitor(tiny_bundle).update(tiny.encode(["ok", "ok"]))
    assert monitor.report().n == 2
    monitor.update(tiny.encode(sentences(400)))
    assert monitor.report().verdict == DriftMonitor(tiny_bundle).update(tiny.encode(sentences(400))).report().verdict


@pytest.mark.parametrize("at_once", [1, 7, 400])
def test_normalised_vectors_are_refused_however_they_are_cut(tiny: Encoder, tiny_bundle: Path, at_once: int) -> None:
    monitor, vectors = DriftMonitor(tiny_bundle), tiny.encode(sentences(400), normalize_embeddings=True)
    for start in range(0, len(vectors), at_once):
        monitor.update(vectors[start : start + at_once])
    with pytest.raises(UsageError, match="all vectors have length 1, as if they were normalised; give those of"):
        monitor.report()
    monitor.reset()
    assert monitor.update(tiny.encode(sentences(400))).report().n == 400


def bfloat16(vectors: np.ndarray) -> np.ndarray:
    """Round to 8 bits, to the nearest."""
    return ((vectors.view(np.uint32) + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)


def int8(vectors: np.ndarray) -> np.ndarray:
    """Round to 256 steps between the ends of each coordinate, and back."""
    start, step = vectors.min(axis=0), np.ptp(vectors, axis=0) / 255
    return start + step * np.round((vectors - start) / step)


@pytest.mark.parametrize("stored", [np.float16, np.float64, bfloat16, int8])
def test_normalised_vectors_are_refused_however_they_are_stored(
    tiny: Encoder, tiny_bundle: Path, stored: Callable[[np.ndarray], np.ndarray] | type
) -> None:
    keep = (lambda rows: rows.astype(stored)) if isinstance(stored, type) else stored
    monitor = DriftMonitor(tiny_bundle).update(keep(tiny.encode(sentences(400), normalize_embeddings=True)))
    with pytest.raises(UsageError, match="all vectors have length 1, as if they were normalised"):
        monitor.report()
    assert DriftMonitor(tiny_bundle).update(keep(tiny.encode(sentences(400)))).report().verdict == "close"


def test_missing_vectors_or_whitening_are_refused(bundle: Path, corpus: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="0 vectors have no spread"):
        DriftMonitor(bundle).report()
    with pytest.raises(UsageError, match="unwhitened=True"):
        DriftMonitor(bundle_of(corpus, tmp_path, "--normalize")).update(corpus)
    copy = copy_bundle(bundle, tmp_path)
    arrays = load_file(copy / "whitening.safetensors")
    for factor, message in ((0, "its whitening has no spread to compare with"), (np.nan, "or no numbers, unlike its")):
        rewrite_file(copy, "whitening.safetensors", save(arrays | {"W": factor * arrays["W"]}))
        with pytest.raises(BundleError, match=message):
            DriftMonitor(copy)
    edit_manifest(copy, lambda manifest: manifest.update(whitening=None))
    with pytest.raises(BundleError, match="has no whitening"):
        DriftMonitor(copy)


def test_bundles_whose_modules_change_the_width_can_drift(tiny: Encoder, tiny_bundle: Path, tmp_path: Path) -> None:
    copy = copy_bundle(tiny_bundle, tmp_path)
    edit_manifest(copy, lambda m: m["source"].update(hidden_size=48))
    edit_manifest(copy, lambda m: m.update(modules=["Dense(48 -> 32, Tanh)"], unwhitened_dimension=32))
    found = DriftMonitor(copy).update(tiny.encode(sentences(400))).report()
    assert (found.width, found.verdict) == (32, "close")


def test_monitors_of_other_bundles_cannot_be_merged(tiny_bundle: Path, tmp_path: Path) -> None:
    mine, space, statistics = DriftMonitor(tiny_bundle), tmp_path / "space", tmp_path / "statistics"
    change_bundle(Path(shutil.copytree(tiny_bundle, space)), layers=[0, 4])
    arrays = load_file(Path(shutil.copytree(tiny_bundle, statistics)) / "whitening.safetensors")
    rewrite_file(statistics, "whitening.safetensors", save(arrays | {"corpus_mean": arrays["corpus_mean"] + 0.01}))
    other = DriftMonitor(space)
    with pytest.raises(UsageError, match=f"in space {space_of(mine.manifest)}, .* in space {space_of(other.manifest)}"):
        mine.merge(other)
    with pytest.raises(UsageError, match="different whitenings"):
        mine.merge(DriftMonitor(statistics))
