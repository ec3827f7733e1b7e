"""Test whitening of precomputed embeddings: `whiten-export --from-vectors`, `VectorWhitener`, `whiten transform`."""

import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from sklearn.decomposition import PCA

from support.cli import ok, refused
from whiten import BundleError, TextError, UsageError, VectorWhitener

WIDTH = 20


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    generator = np.random.default_rng(0)
    mixed = generator.normal(size=(5000, WIDTH)) @ generator.normal(size=(WIDTH, WIDTH))
    return (mixed + 5 * generator.normal(size=WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def files(vectors: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("vectors")
    np.save(folder / "v.npy", vectors)
    table = pyarrow.table({"id": range(len(vectors)), "embedding": list(vectors)})
    pyarrow.parquet.write_table(table, folder / "v.parquet")
    lines = (json.dumps({"text": "x", "vector": row.tolist()}) for row in vectors)
    (folder / "v.jsonl").write_text("\n".join(lines))
    return {path.suffix: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def bundle(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundles") / "b"
    ok("export", "my-api", "--from-vectors", files[".npy"], "--out", out)
    return out


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".jsonl"])
def test_whitening_equals_scikit_learn(
    vectors: np.ndarray, files: dict[str, Path], tmp_path: Path, suffix: str
) -> None:
    options = ("--dim", 7, "--json", "--out", tmp_path / "b")
    result = ok("export", "--from-vectors", files[suffix], *options)
    assert json.loads(result.stdout)["manifest"]["whitening"]["corpus"][0]["sentences"] == len(vectors)
    want = PCA(7, whiten=True).fit_transform(vectors.astype(np.float64))
    got = VectorWhitener(tmp_path / "b").transform(vectors)
    np.testing.assert_allclose(np.abs(got), np.abs(want), atol=2e-4)


def test_bundle_is_transformed_verified_and_pickled(bundle: Path, vectors: np.ndarray, tmp_path: Path) -> None:
    with VectorWhitener(bundle) as whitener:
        assert whitener.manifest.source.model == "my-api"
        assert (whitener.width, whitener.dimension) == (WIDTH, WIDTH)
        together = whitener.transform(vectors)
        np.testing.assert_allclose(np.cov(together.T.astype(np.float64)), np.eye(WIDTH), atol=1e-4)
        np.testing.assert_array_equal(whitener.transform(vectors[3].tolist()), whitener.transform(vectors[3:4])[0])
        assert whitener.transform(np.empty((0, WIDTH))).shape == (0, WIDTH)
        assert whitener.verify().max_difference < 1e-6
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(whitener)).transform(vectors), together)
    np.save(tmp_path / "in.npy", vectors)
    ok("transform", bundle, "--input", tmp_path / "in.npy", "--out", tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), together)
    ok("verify", bundle)


def test_normalised_bundle_gives_unit_vectors(files: dict[str, Path], vectors: np.ndarray, tmp_path: Path) -> None:
    ok("export", "--from-vectors", files[".npy"], "--normalize", "--out", tmp_path / "b")
    norms = np.linalg.norm(VectorWhitener(tmp_path / "b").transform(vectors), axis=1)
    np.testing.assert_allclose(norms, 1, atol=1e-6)


@pytest.mark.parametrize("method", ["pca", "zca", "auto"])
def test_stored_vectors_stay_usable_with_align_to(vectors: np.ndarray, tmp_path: Path, method: str) -> None:
    np.save(tmp_path / "old.npy", vectors[:2500])
    np.save(tmp_path / "new.npy", vectors[2500:])
    ok("export", "my-api", "--from-vectors", tmp_path / "old.npy", "--whitening", method, "--out", tmp_path / "old")
    new = ("export", "my-api", "--from-vectors", tmp_path / "new.npy", "--whitening", method)
    result = ok(*new, "--align-to", tmp_path / "old", "--out", tmp_path / "new", "--json")
    record = json.loads(result.stdout)["manifest"]["whitening"]["alignment"]
    assert record["self_recall"] > 0.99
    assert record["space"] == VectorWhitener(tmp_path / "old").space
    before, after = (
        VectorWhitener(tmp_path / name).transform(vectors, normalize_embeddings=True) for name in ("old", "new")
    )
    assert np.median((before * after).sum(axis=1)) > 0.99


def test_bundles_that_vectors_cannot_be_aligned_to_are_refused(
    bundle: Path, tiny_bundle: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    np.save(tmp_path / "wide.npy", np.random.default_rng(0).normal(size=(200, WIDTH + 1)))
    new = ("export", "--out", tmp_path / "no", "--from-vectors")
    for arguments in (
        (tmp_path / "wide.npy", "--align-to", bundle),
        (files[".npy"], "--dim", 3, "--align-to", bundle),
        (files[".npy"], "--align-to", tiny_bundle),
    ):
        refused(*new, *arguments)
        assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (np.zeros((2, WIDTH + 1)), UsageError, "21"),
        (np.zeros((1, 1, WIDTH)), UsageError, "shape"),
        (np.full((3, WIDTH), np.nan), TextError, r"vectors\[0\]"),
        ([["a"] * WIDTH], TextError, "numbers"),
        ([[1.0], [1.0, 2.0]], TextError, "length"),
    ],
)
def test_invalid_vectors_are_refused(bundle: Path, values: object, error: type[Exception], message: str) -> None:
    with VectorWhitener(bundle) as whitener, pytest.raises(error, match=message):
        whitener.transform(values)  # type: ignore[arg-type]


def test_bundles_of_texts_and_of_vectors_are_not_mixed(bundle: Path, tiny_bundle: Path) -> None:
    with pytest.raises(BundleError):
        VectorWhitener(tiny_bundle)
    refused("embed", bundle, "text", code=1)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--layers", "1"], 2, "--layers"),
        (["--precision", "int8"], 2, "--precision"),
        (["--whitening", "none"], 2, "'none'"),
        (["--dim", "21"], 2, "1 to 20"),
        (["--column", "x"], 2, "column"),
        (["--from-vectors", "nowhere.npy"], 2, "nowhere.npy"),
        (["--from-vectors", "few.npy"], 2, "15 vectors"),
        (["--from-vectors", "nan.npy"], 1, "vector 3"),
        (["--from-vectors", "objects.npy"], 1, "objects.npy"),
        (["--from-vectors", "large.npy"], 1, "vector 1"),
        (["--from-vectors", "uneven.jsonl"], 1, "uneven.jsonl"),
    ],
)
def test_errors_leave_no_bundle(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("few.npy", np.random.default_rng(0).normal(size=(15, WIDTH)))
    np.save("nan.npy", np.array([[1.0], [2.0], [np.nan]]))
    np.save("objects.npy", np.array([{}]), allow_pickle=True)
    Path("uneven.jsonl").write_text("[1, 2]\n[1]\n")
    np.save("large.npy", np.full((3, 2), 1e300))
    source = [] if "--from-vectors" in options else ["--from-vectors", files[".npy"]]
    assert message in refused("export", *source, *options, "--out", "b", code=code)
    assert not Path("b").exists()


def test_missing_model_or_vectors_are_refused() -> None:
    refused("export")
    refused("export", "text-embedding-3-small")
