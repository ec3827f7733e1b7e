"""Test that jobs over many files tell how many texts were cut."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from support.bundles import add_token_without_row, copy_bundle
from support.cli import ok
from whiten import Encoder

LONG = "the dog runs over the field " * 2_000


def lines(tmp_path: Path, texts: list[str]) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("\n".join(texts), "utf-8")
    return path


def table(tmp_path: Path, texts: list[str]) -> Path:
    path = tmp_path / "in.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
    return path


@pytest.mark.parametrize("write", [lines, table])
@pytest.mark.parametrize("kind", ["float32", "int8", "codes"])
def test_embed_many_tells_of_texts_that_were_cut(write, kind: str, tiny_bundle: Path, tmp_path: Path) -> None:
    source = write(tmp_path, ["a dog", LONG, "a cat", LONG, "word" * 100_000])
    arguments = ("embed-many", tiny_bundle, "--input", source, "--out", tmp_path / "out", "--vector-type", kind)
    with Encoder(tiny_bundle) as encoder:
        encoder.encode(["a dog", LONG, "a cat", LONG, "word" * 100_000])
        cut, length = encoder.truncated, encoder.max_seq_length
    assert cut in (2, 3)
    line = f"warning: {cut} of 5 texts were cut: at most {length} tokens of a text are read"
    assert line in ok(*arguments).stderr
    again = ok(*arguments, "--json")  # from the files
    assert line in again.stderr
    assert json.loads(again.stdout)["truncated"] == cut


def test_no_word_where_nothing_was_cut(tiny_bundle: Path, tmp_path: Path) -> None:
    arguments = ("--input", lines(tmp_path, ["a dog", "a cat"]), "--out", tmp_path / "out", "--json")
    found = ok("embed-many", tiny_bundle, *arguments)
    assert "cut" not in found.stderr
    assert json.loads(found.stdout)["truncated"] == 0


def test_texts_beside_one_without_vector_count_once(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)
    add_token_without_row(bundle, "<image>")
    source = lines(tmp_path, [LONG, "see <image> here", LONG])
    arguments = ("--input", source, "--out", tmp_path / "out", "--on-error", "record", "--json")
    assert json.loads(ok("embed-many", bundle, *arguments).stdout)["truncated"] == 2
