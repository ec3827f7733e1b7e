"""Hold the two readers of texts to each other: `whiten embed` reads a file as `whiten embed-many` reads its pieces."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whiten_runtime.errors import WhitenError, encodable
from whiten_runtime.files.rows import read_texts
from whiten_scale.places import find
from whiten_scale.planner import make_job
from whiten_scale.readers import ColumnChoice, read_pieces

ANY = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
TEXTS = ANY | st.sampled_from(
    ["", " ", '"', '""', "a,b", "a\nb", "a\r\nb", "\ufeff", "\x85", "\u2028", "a\tb", "text", "\r"]
)
LINES = st.sampled_from(["\n", "\r\n"])
PARTS = [b"text", b"a", b'"', b",", b"\t", b"\n", b"\r\n", b"\r", b"\xff", b"\0", b"{", b'{"text":"x"}', b" "]
RAW = st.lists(st.sampled_from(PARTS), max_size=14).map(b"".join)


def one(file: Path, column: str | None) -> list[str] | str:
    """Return the texts as `whiten embed` embeds what it reads; "refused" if it does not."""
    try:
        return list(map(encodable, read_texts(file, column)))
    except WhitenError:
        return "refused"


def many(file: Path, column: str | None, per_shard: int) -> list[str] | str:
    """Return the texts of all shards; "refused" if a row is wrong, or the file."""
    found = list[str]()
    common = {"task": "embed", "bundle": "b", "bundle_sha256": "0", "options": {}, "versions": {}}
    try:
        job = make_job(common, find(str(file)), ColumnChoice(column), per_shard)
        for shard in range(len(job.shards)):
            for chunk in read_pieces(job.files, job.shards[shard], job.carried):
                if chunk.wrong:
                    return "refused"
                found += chunk.table.column(0).to_pylist()
    except WhitenError as error:
        return [] if "holds no text" in str(error) else "refused"
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


def check(folder: Path, name: str, content: bytes, column: str | None, per_shard: int) -> None:
    for suffix, written in (("", content), (".gz", gzip.compress(content))):
        file = folder / f"{name}{suffix}"
        file.write_bytes(written)
        assert many(file, column, per_shard) == one(file, column)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["csv", "tsv"]),
    st.lists(st.sampled_from(["text", "id", "sentence", "body"]), min_size=1, max_size=3),
    st.lists(st.lists(TEXTS, min_size=1, max_size=3), max_size=8),
    LINES,
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, "text", "id"]),
    st.integers(1, 4),
)
def test_tables_of_text(
    folder: Path, kind: str, header: list[str], rows: list[list[str]], end: str, mark: bool, blank: bool,
    column: str | None, per_shard: int,
) -> None:  # fmt: skip
    stream = io.StringIO()
    quoted = {"delimiter": ",", "quoting": csv.QUOTE_ALL} if kind == "csv" else {"delimiter": "\t"}
    writer = csv.writer(stream, lineterminator=end, **quoted)  # type: ignore[arg-type]
    writer.writerow(header)
    for row in rows:
        writer.writerow(row)
        stream.write(end if blank else "")
    check(folder, f"a.{kind}", stream.getvalue().encode("utf-8-sig" if mark else "utf-8"), column, per_shard)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            TEXTS.map(json.dumps),
            st.dictionaries(st.sampled_from(["text", "id", "body"]), TEXTS | st.integers() | st.none()).map(json.dumps),
            st.sampled_from(["", " ", "\t", "[]", "null", "{", '"\\ud800"', '{"text": "\\udc00a"}']),
        ),
        max_size=8,
    ),
    LINES,
    st.booleans(),
    st.sampled_from([None, "text", "body"]),
    st.integers(1, 4),
)
def test_lines_of_json(
    folder: Path, lines: list[str], end: str, mark: bool, column: str | None, per_shard: int
) -> None:
    check(folder, "a.jsonl", end.join(lines).encode("utf-8-sig" if mark else "utf-8"), column, per_shard)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["txt", "jsonl", "csv", "tsv"]), RAW, st.sampled_from([None, "text", "a"]), st.integers(1, 4))
def test_any_bytes(folder: Path, kind: str, content: bytes, column: str | None, per_shard: int) -> None:
    check(folder, f"a.{kind}", content, column, per_shard)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(TEXTS | st.none(), max_size=9),
    st.sampled_from([pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())]),
    st.sampled_from(["text", "body"]),
    st.sampled_from([None, "text"]),
    st.integers(1, 4),
)
def test_columns_of_parquet(
    folder: Path, texts: list[str | None], kind: Any, name: str, column: str | None, per_shard: int
) -> None:
    file = folder / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({name: pyarrow.array(texts, kind)}), file, row_group_size=3)
    assert many(file, column, per_shard) == one(file, column)
