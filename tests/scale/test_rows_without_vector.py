"""Test that rows on which onnxruntime fails are named, or left out, by jobs over many files."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from support.bundles import add_token_without_row, copy_bundle, edit_initializer
from support.cli import ok, refused
from whiten import Encoder

BAD = "see <image> here"


@pytest.fixture(scope="module")
def broken(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = copy_bundle(tiny_bundle, tmp_path_factory.mktemp("broken"))
    add_token_without_row(bundle, "<image>")
    return bundle


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [f"a dog and {number} cats" for number in range(300)]
    lines[77] = lines[78] = lines[250] = BAD
    lines[30] = ""
    (folder / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    rows = [*(f"the fox {number}" for number in range(60)), BAD, None]
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), folder / "b.parquet")
    return folder


@pytest.mark.parametrize(("command", "option"), [("embed-many", "--input"), ("fit", "--corpus")])
def test_file_and_row_are_named(broken: Path, source: Path, tmp_path: Path, command: str, option: str) -> None:
    (source / "b.parquet").unlink()
    error = refused(command, broken, option, source, "--out", tmp_path / "out", "--workers", 1, code=1)
    assert "a.txt: row 78 " in error


def test_embed_many_leaves_rows_out(
    broken: Path, source: Path, tmp_path: Path, texts_per_shard: Callable[[int], None]
) -> None:
    texts_per_shard(200)
    out = tmp_path / "out"
    arguments = ("--input", source, "--out", out, "--workers", 1, "--on-error", "record")
    found = json.loads(ok("embed-many", broken, *arguments, "--json").stdout)
    assert (found["rows"], found["wrong"]) == (300 - 3 + 60, 5)
    wrong = [json.loads(line) for line in (out / "_errors.jsonl").read_text("utf-8").splitlines()]
    assert [(row["file"], row["row"]) for row in wrong] == [
        ("a.txt", 78), ("a.txt", 79), ("a.txt", 251), ("b.parquet", 61), ("b.parquet", 62),
    ]  # fmt: skip
    table = pyarrow.concat_tables([pyarrow.parquet.read_table(path) for path in sorted(out.glob("*.parquet"))])
    kept = [("a.txt", row) for row in range(1, 301) if row not in (78, 79, 251)] + [
        ("b.parquet", n) for n in range(1, 61)
    ]
    assert list(zip(table["file"].to_pylist(), table["row"].to_pylist(), strict=True)) == kept
    with Encoder(broken) as encoder:
        texts = ["" if row == 31 else f"a dog and {row - 1} cats" for file, row in kept if file == "a.txt"]
        vectors = np.stack(table["embedding"].to_numpy())[: len(texts)]
        np.testing.assert_allclose(vectors, encoder.encode(texts), atol=1e-5)


def test_shard_of_rows_without_vectors_is_empty(broken: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(f"{BAD}\n" * 5, encoding="utf-8")
    arguments = ("--input", tmp_path / "in.txt", "--out", tmp_path / "out", "--workers", 1, "--on-error", "record")
    found = json.loads(ok("embed-many", broken, *arguments, "--json").stdout)
    assert (found["rows"], found["wrong"], found["blank"]) == (0, 5, 0)
    assert len(pyarrow.parquet.read_table(tmp_path / "out" / "part-000000.parquet")) == 0


def test_rows_whose_vectors_are_not_finite_are_left_out(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)
    with Encoder(bundle) as encoder:
        fox, dog, cat = ({token.id for token in encoder.tokens(text)} for text in ("the fox", "a dog", "the cat"))

    def spoil(table: np.ndarray) -> np.ndarray:
        table[list(fox - dog - cat)] = np.nan
        return table

    edit_initializer(bundle, "network.embeddings.word_embeddings.weight", spoil)
    (tmp_path / "in.txt").write_text("a dog\nthe fox\nthe cat\n", encoding="utf-8")
    arguments = ("--input", tmp_path / "in.txt", "--out", tmp_path / "out", "--workers", 1, "--on-error", "record")
    assert json.loads(ok("embed-many", bundle, *arguments, "--json").stdout)["rows"] == 2
    (wrong,) = map(json.loads, (tmp_path / "out" / "_errors.jsonl").read_text("utf-8").splitlines())
    assert wrong["row"] == 2


def test_coordinate_beyond_float16_is_of_its_row(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)
    texts = ["A text.", "a dog", "the cat", "the fox runs over the field"]
    with Encoder(bundle) as encoder:
        largest = np.abs(encoder.encode(texts)).max(axis=1)
    row = int(largest[1:].argmax()) + 1
    assert largest[row] > largest[0]
    others = np.delete(largest, row).max()
    edit_initializer(bundle, "whitening.weight", lambda weight: weight * (65504 / np.sqrt(others * largest[row])))
    (tmp_path / "in.txt").write_text("\n".join(texts), encoding="utf-8")
    arguments = ("embed-many", bundle, "--input", tmp_path / "in.txt", "--out", tmp_path / "out", "--workers", 1)
    error = refused(*arguments, "--vector-type", "float16", code=1)
    assert f"in.txt: row {row + 1} " in error
    found = json.loads(ok(*arguments, "--vector-type", "float16", "--on-error", "record", "--json").stdout)
    assert (found["rows"], found["wrong"]) == (3, 1)
