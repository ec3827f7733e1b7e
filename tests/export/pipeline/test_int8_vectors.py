"""Test `--round-to int8` from the command line: export, refit, files, drift, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.bundles import change_bundle, copy_bundle
from support.cli import invoke as run
from support.cli import ok, refused
from support.corpus import sentences
from whiten import Encoder, UsageError, VectorWhitener
from whiten_export.pipeline.refit import fit_statistics
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.bundle.parity import gate_of
from whiten_runtime.bundle.ranges import as_int8, to_steps
from whiten_runtime.bundle.space import directions_of
from whiten_runtime.commands.main import whiten
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.files.vector_metadata import read_metadata
from whiten_runtime.inference.vectors import row_cosines
from whiten_whitening.drift import DriftMonitor

pytestmark = pytest.mark.slow

TEXTS = ["", *sentences(700)[600:]]


@pytest.fixture
def rounded(make: Callable[..., Path]) -> Path:
    return make("--round-to", "int8")


@pytest.mark.parametrize(
    "options",
    [(), ("--dim", "8"), ("--whitening", "none"), ("--precision", "fp16"), ("--precision", "int8")],
    ids=" ".join,
)
def test_vectors_are_the_float_ones_rounded(make: Callable[..., Path], options: tuple[str, ...]) -> None:
    with Encoder(make(*options)) as plain, Encoder(make(*options, "--round-to", "int8")) as encoder:
        float_vectors, vectors = plain.encode(TEXTS), encoder.encode(TEXTS)
        assert vectors.dtype == np.float32
        exact = to_steps(float_vectors)
        assert np.abs(vectors - exact).max() < 0.5 + 1e-2
        assert (vectors != np.rint(exact)).mean() < 1e-2
        np.testing.assert_array_equal(as_int8(vectors), vectors)
        assert row_cosines(vectors, float_vectors).min() > 0.9995
        np.testing.assert_array_equal(as_int8(encoder.encode(TEXTS[3])), vectors[3])
        agreement, manifest = encoder.verify(), encoder.manifest
        assert gate_of(manifest.precision, "int8").passes(agreement)
        assert manifest.parity is not None
        assert (manifest.vectors, manifest.parity.max_norm_error) == ("int8", None)
        assert plain.manifest.vectors == "float32"
        assert plain.space != encoder.space
        assert directions_of(plain.manifest) == directions_of(manifest)
        unit = encoder.encode(TEXTS, normalize_embeddings=True)
        np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)


def test_options_of_encode_give_whole_numbers_where_they_can(make: Callable[..., Path], rounded: Path) -> None:
    with Encoder(rounded) as encoder, Encoder(make()) as plain:
        whole, cut = encoder.encode(TEXTS), encoder.encode(TEXTS, truncate_dim=8)
        np.testing.assert_array_equal(cut, whole[:, :8])
        assert row_cosines(cut, plain.encode(TEXTS, truncate_dim=8)).min() > 0.999
        found = encoder.encode(TEXTS, precision="int8")
        assert found.dtype == np.int8
        np.testing.assert_array_equal(found, whole)
        np.testing.assert_array_equal(encoder.encode(TEXTS, precision="ubinary"), np.packbits(whole > 0, axis=1))
        with pytest.raises(UsageError, match="are int8 already; take precision int8"):
            encoder.encode(TEXTS, precision="uint8")


def test_both_outputs_of_which_one_is_rounded(make: Callable[..., Path]) -> None:
    bundle = make("--round-to", "int8", "--outputs", "both")
    with Encoder(bundle) as encoder, Encoder(make("--whitening", "none")) as raw:
        white, unwhitened = encoder.encode_both(TEXTS)
        np.testing.assert_array_equal(as_int8(white), encoder.encode(TEXTS))
        np.testing.assert_allclose(unwhitened, raw.encode(TEXTS), atol=1e-6)


@pytest.mark.parametrize("kind", ["npy", "parquet", "jsonl"])
def test_files_hold_int8_and_are_compared_with_float32(
    make: Callable[..., Path], rounded: Path, corpus_file: Path, tmp_path: Path, kind: str
) -> None:
    header = ["--header"] if kind == "jsonl" else []
    ours, theirs = tmp_path / f"int8.{kind}", tmp_path / f"float32.{kind}"
    for bundle, file in ((rounded, ours), (make(), theirs)):
        ok("embed", bundle, "--input", corpus_file, "--out", file, *header)
    found = read_metadata(ours)
    assert found is not None
    assert (found.vector_type, found.compared_by) == ("int8", Encoder(make()).space)
    lines = ok("similarity", ours, theirs).stdout.split()
    assert len(lines) == 400
    assert min(map(float, lines)) > 0.9995
    nearest = json.loads(ok("similarity", ours, theirs, "--top", "1", "--json").stdout)["nearest"]
    assert np.mean([row[0]["row"] == number for number, row in enumerate(nearest)]) > 0.95  # sentences occur twice


def test_embed_writes_whole_numbers_unless_it_normalises(rounded: Path, corpus_file: Path, tmp_path: Path) -> None:
    with Encoder(rounded) as encoder:
        want = as_int8(encoder.encode("A text.")).tolist()
    line = json.dumps({"text": "A text.", "embedding": want}, separators=(",", ":"))
    assert ok("embed", rounded, "A text.").stdout == line + "\n"
    assert json.loads(ok("embed", rounded, "A text.", "--json").stdout)["embeddings"] == [want]
    row = json.loads(ok("embed", rounded, "A text.", "--normalize").stdout)["embedding"]
    assert np.linalg.norm(row) == pytest.approx(1)
    options = {
        "unit": ("--normalize",),
        "cut": ("--truncate-dim", "8"),
        "plain": (),
        "asked": ("--vector-type", "int8"),
    }
    files = {name: tmp_path / f"{name}.npy" for name in options}
    for name, file in files.items():
        ok("embed", rounded, "--input", corpus_file, "--out", file, *options[name])
    kinds = {name: np.load(file).dtype for name, file in files.items()}
    assert kinds == {"unit": np.float32, "cut": np.int8, "plain": np.int8, "asked": np.int8}
    for end in ("npy", "npy.json"):
        assert (tmp_path / f"plain.{end}").read_bytes() == (tmp_path / f"asked.{end}").read_bytes()


def test_statistics_are_those_of_unrounded_vectors(make: Callable[..., Path], rounded: Path, other_file: Path) -> None:
    for options in ((), ("--whitening", "none")):
        plain, other = (
            fit_statistics(bundle, Corpus((str(other_file),), None, None))
            for bundle in (make(*options), make(*options, "--round-to", "int8"))
        )
        np.testing.assert_allclose(other.moments.mean, plain.moments.mean, atol=1e-7)
        np.testing.assert_allclose(other.moments.covariance, plain.moments.covariance, atol=1e-7)


def test_drift_is_that_of_unrounded_vectors(make: Callable[..., Path], rounded: Path, other_file: Path) -> None:
    found = []
    for bundle in (make(), rounded):
        result = run(whiten, "drift", bundle, "--input", other_file, "--json")
        assert result.exit_code in (0, 3, 4), result.stderr
        found.append(json.loads(result.stdout))
    for name in ("mean_shift", "spectrum_ratio", "iso_scores", "average_cosines"):
        assert found[1][name] == pytest.approx(found[0][name], rel=1e-3, abs=1e-6)
    assert found[1]["verdict"] == found[0]["verdict"]


def test_drift_refuses_rounded_vectors(rounded: Path, corpus_file: Path, tmp_path: Path) -> None:
    ok("embed", rounded, "--input", corpus_file, "--out", tmp_path / "v.npy")
    error = refused("drift", rounded, "--input", tmp_path / "v.npy")
    assert "holds int8 vectors, each with a scale of its own" in error
    with pytest.raises(UsageError, match="this bundle's vectors are int8"):
        DriftMonitor(rounded).update(np.load(tmp_path / "v.npy"))


def test_refit_keeps_or_changes_the_type(
    make: Callable[..., Path], rounded: Path, other_file: Path, tmp_path: Path
) -> None:
    for name, bundle, options, want in (
        ("kept", rounded, (), "int8"),
        ("float", rounded, ("--round-to", "float32"), "float32"),
        ("int8", make("--normalize"), ("--round-to", "int8"), "int8"),
        ("bare", make("--whitening", "none", "--round-to", "int8"), (), "int8"),
    ):
        ok("refit", bundle, "--corpus", other_file, "--whitening", "pca", *options, "--out", tmp_path / name)
        manifest = read_manifest(tmp_path / name)
        assert (manifest.vectors, manifest.normalize) == (want, False)
        ok("verify", tmp_path / name)
    with Encoder(tmp_path / "float") as plain:
        exact = to_steps(plain.encode(TEXTS))
    for name in ("kept", "int8", "bare"):
        with Encoder(tmp_path / name) as encoder:
            assert np.abs(encoder.encode(TEXTS) - exact).max() < 0.5 + 1e-2


def test_vectors_from_elsewhere(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(1, 1, (4000, 20)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    options = ("--from-vectors", tmp_path / "v.npy", "--round-to", "int8")
    result = ok("export", "my-api", *options, "--out", tmp_path / "b")
    assert "20 numbers of int8" in result.stderr
    ok("verify", tmp_path / "b")
    ok("transform", tmp_path / "b", "--input", tmp_path / "v.npy", "--out", tmp_path / "w.npy")
    written = np.load(tmp_path / "w.npy")
    assert written.dtype == np.int8
    with VectorWhitener(tmp_path / "b") as whitener:
        np.testing.assert_array_equal(as_int8(whitener.transform(vectors)), written)
    white = np.linalg.qr(vectors - vectors.mean(axis=0))[0]
    cosines = row_cosines(written[:50].astype(np.float32), written[50:100].astype(np.float32))
    np.testing.assert_allclose(cosines, row_cosines(white[:50], white[50:100]), atol=0.02)  # any whitening has these


def test_a_coordinate_that_outweighs_all_others_is_refused(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(4000, 800)).astype(np.float32)
    vectors[:, 0] *= 1000
    np.save(tmp_path / "v.npy", vectors)
    options = ("--from-vectors", tmp_path / "v.npy", "--whitening", "centre", "--round-to", "int8")
    error = refused("export", *options, "--out", tmp_path / "b", code=1)
    assert "rounding to int8 costs these vectors too much" in error
    assert not (tmp_path / "b").exists()


def test_refit_refuses_other_similarities(make: Callable[..., Path], other_file: Path, tmp_path: Path) -> None:
    copy = copy_bundle(make(), tmp_path)
    change_bundle(copy, similarity_fn_name="dot")
    options = ("--corpus", other_file, "--round-to", "int8", "--out", tmp_path / "b")
    assert "int8 keep cosines alone" in refused("refit", copy, *options)
