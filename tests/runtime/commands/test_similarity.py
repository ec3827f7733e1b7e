"""Test `whiten similarity`: cosines of vectors in two files, and the refusal to compare vectors of two spaces."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from support.cli import invoke, ok, refused
from whiten_runtime.bundle.records import AlignmentRecord
from whiten_runtime.commands import similarity
from whiten_runtime.commands.main import whiten
from whiten_runtime.files.vector_metadata import VectorMetadata, sidecar_of
from whiten_runtime.files.write_vectors import writing_vectors

run = partial(invoke, whiten)

SPACE, OTHER = "0123456789abcdef", "f" * 16


def write(path: Path, rows: np.ndarray, space: str | None = SPACE) -> Path:
    metadata = VectorMetadata(space=space or SPACE, bundle="b", dimension=rows.shape[1], normalized=False)
    with writing_vectors(path, metadata, header=space is not None and path.suffix == ".jsonl") as writer:
        writer.write([""] * len(rows), rows.astype(np.float32))
    if space is None and path.suffix == ".npy":
        sidecar_of(path).unlink()
    return path


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(10, 4))


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    one, other = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (a, b))
    return np.asarray(one @ other.T)


@pytest.mark.parametrize("kinds", [("npy", "npy"), ("npy", "parquet"), ("jsonl", "npy")])
@pytest.mark.parametrize("at_once", [3, 4096])
def test_each_row_is_compared_with_the_same_row(
    tmp_path: Path, rows: np.ndarray, kinds: tuple[str, str], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(similarity, "_ROWS_AT_ONCE", at_once)
    a, b = write(tmp_path / f"a.{kinds[0]}", rows), write(tmp_path / f"b.{kinds[1]}", rows[::-1])
    want = np.diag(cosines(rows, rows[::-1]))
    result = ok("similarity", a, b)
    np.testing.assert_allclose([float(line) for line in result.stdout.splitlines()], want, atol=2e-6)
    assert result.stderr == ""
    document = json.loads(ok("similarity", a, b, "--json").stdout)
    assert document["spaces"] == [SPACE, SPACE]
    np.testing.assert_allclose(document["cosines"], want, atol=1e-6)


@pytest.mark.parametrize("top", [1, 4, 99])
@pytest.mark.parametrize("at_once", [3, 4096])
def test_top_gives_the_nearest_rows(
    tmp_path: Path, rows: np.ndarray, top: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(similarity, "_ROWS_AT_ONCE", at_once)
    a, b = write(tmp_path / "a.npy", rows[:7]), write(tmp_path / "b.jsonl", rows)
    all_cosines = cosines(rows[:7], rows)
    want = [
        (query, row, all_cosines[query, row])
        for query in range(7)
        for row in np.argsort(-all_cosines[query])[:top].tolist()
    ]
    lines = [line.split("\t") for line in ok("similarity", a, b, "--top", top).stdout.splitlines()]
    assert [(int(line[0]), int(line[1])) for line in lines] == [(query, row) for query, row, _ in want]
    np.testing.assert_allclose([float(line[2]) for line in lines], [cosine for _, _, cosine in want], atol=2e-6)
    document = json.loads(ok("similarity", a, b, "--top", top, "--json").stdout)
    found = [(query, one["row"]) for query, near in enumerate(document["nearest"]) for one in near]
    assert found == [(query, row) for query, row, _ in want]


@pytest.mark.parametrize("options", [(), ("--top", 2)])
@pytest.mark.parametrize("kinds", [("npy", "npy"), ("parquet", "jsonl")])
def test_vectors_of_two_spaces_are_refused_by_name(
    tmp_path: Path, rows: np.ndarray, kinds: tuple[str, str], options: tuple[object, ...]
) -> None:
    a, b = write(tmp_path / f"a.{kinds[0]}", rows), write(tmp_path / f"b.{kinds[1]}", rows, OTHER)
    error = refused("similarity", a, b, *options)
    assert f"in space {SPACE}, " in error
    assert f"in space {OTHER}: their vectors cannot be compared" in error
    forced = ok("similarity", a, b, *options, "--allow-different-spaces")
    assert forced.stderr.startswith("warning: ")
    assert (SPACE in forced.stderr, OTHER in forced.stderr, forced.stderr.count("\n")) == (True, True, 1)
    assert forced.stdout.splitlines()[0].endswith("1.000000")


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (None, None, "neither 'a.npy' nor 'b.jsonl' says"),
        (SPACE, None, "only 'a.npy' says"),
        (None, SPACE, "only 'b.j"),
    ],
)
def test_a_file_without_a_space_is_compared_with_a_warning(
    tmp_path: Path,
    rows: np.ndarray,
    first: str | None,
    second: str | None,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    a, b = write(Path("a.npy"), rows, first), write(Path("b.jsonl"), rows, second)
    result = ok("similarity", a, b)
    assert result.stderr.startswith(f"warning: {words}")
    assert result.stderr.count("\n") == 1
    assert result.stdout == "1.000000\n" * 10


@pytest.mark.parametrize(
    ("first", "second", "options", "code", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 4)), (), 2, "vectors of 3 ("),
        (np.ones((2, 3)), np.ones((2, 4)), ("--top", 1), 2, "vectors of 3 ("),
        (np.ones((2, 3)), np.ones((5, 3)), (), 2, "a.npy' holds 2 vectors and"),
        (np.ones((5, 3)), np.ones((2, 3)), (), 2, "b.npy' 2; wanted as many"),
        (np.ones((0, 3)), np.ones((0, 3)), (), 1, "a.npy: holds no vectors"),
        (np.ones((3, 3)), np.ones((0, 3)), ("--top", 1), 1, "b.npy: holds no vectors"),
        (np.full((2, 3), np.nan), np.ones((2, 3)), (), 1, "vector 1 is not finite"),
        (np.ones((2, 3)), np.full((2, 3), np.nan), ("--top", 1), 1, "b.npy: vector 1 is not finite"),
        (np.ones((2, 3)), np.ones((2, 3)), ("--column", "x"), 2, "has no column 'x'"),
    ],
)
@pytest.mark.parametrize("at_once", [2, 4096])
def test_errors_are_one_line(
    tmp_path: Path,
    first: np.ndarray,
    second: np.ndarray,
    options: tuple[object, ...],
    code: int,
    message: str,
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(similarity, "_ROWS_AT_ONCE", at_once)
    error = refused(
        "similarity", write(tmp_path / "a.npy", first), write(tmp_path / "b.npy", second), *options, code=code
    )
    assert message in error


def test_files_that_are_none_are_refused(tmp_path: Path, rows: np.ndarray) -> None:
    a = write(tmp_path / "a.npy", rows)
    (tmp_path / "x.txt").write_text("1 2 3\n")
    for other, message in ((tmp_path / "nowhere.npy", "does not exist"), (tmp_path / "x.txt", "unknown kind of file")):
        assert message in refused("similarity", a, other)


@pytest.mark.parametrize(
    ("space", "cosine", "code", "message"),
    [
        (SPACE, 0.96, 0, "are aligned: vectors of a text are close in both (median cosine 0.960, 99.0 %"),
        (SPACE, 0.5, 2, "are aligned, but too far apart (median cosine 0.500"),
        ("2" * 16, 0.96, 2, "cannot be compared"),
    ],
)
def test_aligned_spaces_are_compared_with_a_warning(
    tmp_path: Path, rows: np.ndarray, space: str, cosine: float, code: int, message: str
) -> None:
    alignment = AlignmentRecord(space=space, median_cosine=cosine, self_recall=0.99, sentences=100)
    old, new = write(tmp_path / "old.npy", rows), write(tmp_path / "new.npy", rows, OTHER)
    described = VectorMetadata(space=OTHER, bundle="b", dimension=4, normalized=False, vectors=10, alignment=alignment)
    sidecar_of(new).write_bytes(described.to_json())
    for first, second in ((old, new), (new, old)):
        result = run("similarity", first, second)
        assert (result.exit_code, message in result.stderr) == (code, True), result.stderr
        ok("similarity", first, second, "--allow-different-spaces")
