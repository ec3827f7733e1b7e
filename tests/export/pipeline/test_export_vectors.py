"""Test whitening of precomputed embeddings: `whiten-export --from-vectors`, `VectorWhitener`, `whiten transform`."""

import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from sklearn.decomposition import PCA

from support.bundles import copy_bundle
from support.cli import ok, refused
from whiten import BundleError, Encoder, IntegrityError, TextError, UsageError, VectorWhitener

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
    assert f"vectors of {WIDTH} dimensions" in ok("info", bundle).stdout


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
    for arguments, message in (
        ((tmp_path / "wide.npy", "--align-to", bundle), "(vectors of 20 and 21 dimensions)"),
        ((files[".npy"], "--dim", 3, "--align-to", bundle), "the new bundle of 3; give --dim 20"),
        ((files[".npy"], "--align-to", tiny_bundle), "it is of another model or of other layers"),
    ):
        assert message in refused(*new, *arguments)
        assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (np.zeros((2, WIDTH + 1)), UsageError, r"shape \(2, 21\); wanted \[n, 20\]"),
        (np.zeros((1, 1, WIDTH)), UsageError, "shape"),
        (np.full((3, WIDTH), np.nan), TextError, r"vectors\[0\] is not finite"),
        ([["a"] * WIDTH], TextError, "not numbers"),
        ([[1.0], [1.0, 2.0]], TextError, "rows of equal length"),
    ],
)
def test_invalid_vectors_are_refused(bundle: Path, values: object, error: type[Exception], message: str) -> None:
    with VectorWhitener(bundle) as whitener, pytest.raises(error, match=message):
        whitener.transform(values)  # type: ignore[arg-type]


def test_bundles_of_texts_and_altered_ones_are_refused(bundle: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="takes vectors, not texts"):
        Encoder(bundle)
    with pytest.raises(BundleError, match="takes texts, not vectors"):
        VectorWhitener(tiny_bundle)
    assert "takes vectors, not texts" in refused("embed", bundle, "text", code=1)
    copy = copy_bundle(bundle, tmp_path)
    with (copy / "onnx" / "model.onnx").open("r+b") as file:
        file.seek(-2, 2)
        file.write(b"\x01")
    with pytest.raises(IntegrityError):
        VectorWhitener(copy)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--layers", "1"], 2, "--layers is for models"),
        (["--dev", "pairs.csv"], 2, "--dev is for models"),
        (["--precision", "int8"], 2, "--precision is for models"),
        (["--whitening", "none"], 2, "whitening is 'none'; wanted pca or zca"),
        (["--dim", "21"], 2, "wanted 1 to 20"),
        (["--column", "x"], 2, "has no column"),
        (["--from-vectors", "nowhere.npy"], 2, "does not exist"),
        (["--from-vectors", "v.bin"], 2, "unknown kind of file"),
        (["--from-vectors", "few.npy"], 2, "15 vectors cannot whiten 20 dimensions"),
        (["--from-vectors", "flat.npy"], 1, "wanted numbers [n, d]"),
        (["--from-vectors", "nan.npy"], 1, "vector 3 is not finite"),
        (["--from-vectors", "objects.npy"], 1, "not a .npy file"),
        (["--from-vectors", "several.npy"], 1, "holds several arrays"),
        (["--from-vectors", "huge.jsonl"], 1, "is too large"),
        (["--from-vectors", "large.npy"], 1, "vector 1 is not finite"),
        (["--from-vectors", "uneven.jsonl"], 1, "wanted one length"),
        (["--from-vectors", "empty.jsonl"], 1, "holds no vector"),
    ],
)
def test_errors_leave_no_bundle(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("few.npy", np.random.default_rng(0).normal(size=(15, WIDTH)))
    np.save("flat.npy", np.zeros(5))
    np.save("nan.npy", np.array([[1.0], [2.0], [np.nan]]))
    np.save("objects.npy", np.array([{}]), allow_pickle=True)
    Path("uneven.jsonl").write_text("[1, 2]\n[1]\n")
    Path("empty.jsonl").write_text("\n")
    Path("v.bin").touch()
    np.savez("several.npz", a=np.zeros((2, 2)), b=np.zeros((2, 2)))
    Path("several.npz").rename("several.npy")
    Path("huge.jsonl").write_text(f"[{10**400}]\n")
    np.save("large.npy", np.full((3, 2), 1e300))
    source = [] if "--from-vectors" in options else ["--from-vectors", files[".npy"]]
    assert message in refused("export", *source, *options, "--out", "b", code=code)
    assert not Path("b").exists()


def test_missing_model_or_vectors_are_refused() -> None:
    assert "MODEL is missing" in refused("export")
    assert "--from-vectors FILE" in refused("export", "text-embedding-3-small")
