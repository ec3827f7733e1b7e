import bz2
import csv
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whiten import Corpus, DataError, UsageError
from whiten_runtime.files.rows import LONGEST, place_of, read_texts

TEXTS = ["plain", "", 'comma, and "quotes"', "tab\tinside", "naïve 日本 👩‍👧", "x" * 200_000]


@pytest.mark.parametrize("kind", ["csv", "tsv"])
@pytest.mark.parametrize("limit", [131_072, 50, 10**6])
def test_the_limit_of_fields_is_left_to_the_program(tmp_path: Path, kind: str, limit: int) -> None:
    path, before = _write(tmp_path / f"file.{kind}", kind), csv.field_size_limit(limit)
    try:
        wrong = tmp_path / f"wrong.{kind}"
        wrong.write_text('a,b\n"x,y\n', "utf-8")
        with ThreadPoolExecutor(4) as pool:
            tries = [pool.submit(lambda: list(read_texts(str(path), "text"))) for _ in range(20)]
            with pytest.raises(DataError) if kind == "csv" else nullcontext():
                list(read_texts(str(wrong), "b" if kind == "csv" else "a,b"))
            assert all(one.result() == _texts(kind) for one in tries)
        reading = read_texts(str(path), "text")
        next(iter(reading))
        assert csv.field_size_limit() == limit
    finally:
        csv.field_size_limit(before)


def test_an_import_changes_no_limit() -> None:
    code = "import csv, whiten, whiten_runtime.files.rows; whiten.Corpus; print(csv.field_size_limit())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "131072\n"


def _texts(kind: str) -> list[str]:
    """Return the texts that a kind of file can hold: fields of a .tsv file are not quoted, so they have no tab."""
    return [text for text in TEXTS if kind != "tsv" or "\t" not in text]


def _write(path: Path, kind: str) -> Path:
    rows = [{"id": index, "text": text} for index, text in enumerate(TEXTS)]
    if kind == "jsonl":
        content = "\n".join(json.dumps(row, ensure_ascii=index % 2 == 0) for index, row in enumerate(rows))
    elif kind == "tsv":
        content = "".join(f"{row}\t{text}\n" for row, text in [("id", "text"), *enumerate(_texts("tsv"))])
    elif kind == "csv":
        stream = io.StringIO()
        writer = csv.DictWriter(stream, ["id", "text"])
        writer.writeheader()
        writer.writerows(rows)
        content = stream.getvalue()
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    else:
        content = "\n".join(TEXTS) + "\n"
    path.write_text(content, "utf-8", newline="")
    return path


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
}


@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv", "tsv", "parquet"])
@pytest.mark.parametrize("ending", COMPRESS)
def test_texts_are_read_from_every_kind_of_file(tmp_path: Path, kind: str, ending: str) -> None:
    plain = _write(tmp_path / f"texts.{kind}", kind)
    path = plain.with_name(plain.name + ending)
    path.write_bytes(COMPRESS[ending](plain.read_bytes()))
    assert list(read_texts(path)) == _texts(kind)
    if kind != "txt":
        assert list(read_texts(path, "text")) == _texts(kind)
        with pytest.raises(UsageError, match="has no column 'sentense', only 'id', 'text'"):
            list(read_texts(path, "sentense"))


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.csv", 'text,n\n"two\nlines",1\nnext,2\n', ["two\nlines", "next"]),
        ("b.csv", 'n,text\r1,"two\rlines"\r2,"three\r\nmore\n"\r', ["two\rlines", "three\r\nmore\n"]),
        ("a.jsonl", r'{"text": "\ud83d half"}', ["\ud83d half"]),
        ("b.jsonl", '{"n": 1, "text": "one", "n": 2, "more": {"n": 1, "n": 2}}', ["one"]),
        ("a.txt", "\ufeffone\r\ntwo", ["one", "two"]),
        ("a.tsv", 'text\tn\n"Hello he said\t1\nthird "q"\t3\n', ['"Hello he said', 'third "q"']),
    ],
)
def test_what_files_hold(tmp_path: Path, name: str, content: str, texts: list[str]) -> None:
    (tmp_path / name).write_text(content, "utf-8", newline="")
    assert list(read_texts(tmp_path / name)) == texts


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", '"one"\n'), ("a.txt", "one\n")])
def test_texts_on_lines_have_no_other_columns(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match="'body'"):
        list(read_texts(tmp_path / name, "body"))
    for kind in ("doc", "jsonl.gzip"):
        with pytest.raises(UsageError, match=kind):
            list(read_texts(tmp_path / name, None, kind))


ENDS = {
    "a.txt": ("one", "two", "", "three\x85\x0b\x0c\x1c\u2028\u2029 four"),
    "a.jsonl": ('"one"', '{"text": "two"}', "", '"three\x85\u2028\u2029 four"'),
    "a.csv": ("n,text", "1,one", "", '2,"two"', "3,three\x85\x0b\x0c\x1c\u2028\u2029 four"),
    "a.tsv": ("n\ttext", "1\tone", "", "2\ttwo", "3\tthree\x85\x0b\x0c\x1c\u2028\u2029 four"),
}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "mixed"])
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "open"])
@pytest.mark.parametrize("name", ENDS)
def test_lines_end_as_for_open(tmp_path: Path, name: str, ended: bool, end: str) -> None:
    """Lines that only CR ends, as on old Macs, were one text; NEL, form feeds and U+2028 never end a line."""
    path, lines = tmp_path / name, ENDS[name]
    ends = cycle(["\r", "\n", "\r\n"] if end == "mixed" else [end])
    content = "".join(chain.from_iterable(zip(lines, ends, strict=False)))
    path.write_text(content if ended else content.rstrip("\r\n"), "utf-8", newline="")
    wanted = [line.rstrip("\n") for line in path.open(encoding="utf-8")]
    texts = list(read_texts(path))
    assert texts == wanted if name == "a.txt" else (texts[:2], len(texts)) == (["one", "two"], 3)
    assert place_of(path, None, len(texts) - 1) == f"{path}: line {len(lines)}"
    assert list(Corpus((str(path),), None, None)) == [text for text in texts if text]


def _damaged_gzip() -> bytes:
    """Return a valid header, followed by a stream that zlib refuses."""
    content = bytearray(gzip.compress(b"some text\n" * 200, mtime=0))
    content[10:14] = b"\xff\xff\xff\xff"
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "error", "named"),
    [
        ("a.doc", b"x", UsageError, "doc"),
        ("a", b"x", UsageError, "a"),
        ("a.txt", b"fine\ncaf\xe9\n", DataError, "line 2"),
        *(
            (name, "text,id\na,1\n".encode("utf-16-le"), DataError, "UTF-16")
            for name in ("a.txt", "a.jsonl", "a.csv", "a.tsv")
        ),
        ("a.jsonl", b'{"text": "a"}\n{oops\n', DataError, "line 2"),
        ("a.jsonl", b'{"text": "a", "text": "b"}\n', DataError, "line 1"),
        ("a.jsonl", b'{"text": "a"}\n{"body": "a"}\n', DataError, "line 2"),
        ("a.csv", b"a,b\n1,2\n", UsageError, "--column"),
        ("a.csv", b"text,id,text\na,1,b\n", UsageError, "'text'"),
        ("a.csv", b"id;text\n1;x\n", UsageError, "'id;text'"),
        *(
            (name, line + b"\nid,text\n1,x\n", DataError, "line 1")
            for name, line in [("a.csv", b""), ("a.csv", b",,"), ("a.csv", b"\xef\xbb\xbf"), ("a.tsv", b" \t ")]
        ),
        ("a.csv", b"id,text\n1,x\n2\n", DataError, "line 3"),
        ("a.csv", b"text\nHello, world\n", DataError, "line 2"),
        ("a.csv", b'text\n"never closed\nnext\n', DataError, "a.csv"),
        ("a.txt.gz", _damaged_gzip(), DataError, "gz"),
        *((f"a.{ending}", b"", DataError, ending) for ending in ("txt.gz", "txt.zst", "jsonl.gz", "csv.zst")),
        ("a.parquet", b"nonsense", DataError, "parquet"),
    ],
)
def test_malformed_files_are_refused(
    tmp_path: Path, name: str, content: bytes, error: type[Exception], named: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(error, match=named) as caught:
        list(read_texts(path))
    assert str(path) in str(caught.value)


def test_one_of_very_many_keys_twice_is_refused_at_once(tmp_path: Path) -> None:
    """Counting each key among all of them takes minutes."""
    fields = ", ".join(f'"{number}": 0' for number in range(100_000))
    (tmp_path / "a.jsonl").write_text(f'{{{fields}, "text": "a", "text": "b"}}')
    with pytest.raises(DataError, match="line 1 holds two values at 'text'; wanted a string"):
        list(read_texts(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("ending", list(COMPRESS)[1:])
def test_compressed_files_are_read_to_their_end(tmp_path: Path, ending: str) -> None:
    """Streams one after the other are one file; what follows and is no stream is refused, as is half of a stream."""
    path, lines = tmp_path / f"a.txt{ending}", [f"line {number}" for number in range(2000)]
    first, second = (COMPRESS[ending]("".join(f"{line}\n" for line in part).encode()) for part in (lines, ["last"]))
    zeros = [] if ending == ".zst" else [bytes(4), bytes(9000)]
    for between in (b"", *zeros):
        for after in (b"", *zeros):
            path.write_bytes(first + between + second + after)
            assert list(read_texts(path)) == [*lines, "last"]
    rests = (b"junk", b"\n", b"junk" * 9000, bytes(8) + b"junk", second + b"junk", second[:3], second[:-1])
    for content in (*(first + rest for rest in rests), first[: len(first) // 2], b"no such file"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"a.txt{ending}"):
            list(read_texts(path))


@pytest.mark.parametrize(
    ("column", "error", "named"),
    [
        (pyarrow.array([1, 2]), UsageError, "int64"),
        (pyarrow.array(["a", None]), DataError, "row 2"),
        (pyarrow.array([b"a", b"\xff"]), DataError, "row 2"),
        (pyarrow.array([b"a", b"\xff"]).view(pyarrow.string()), DataError, "row 2"),
    ],
)
def test_rows_of_parquet_without_a_string_are_refused(
    tmp_path: Path, column: Any, error: type[Exception], named: str
) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(error, match=named):
        list(read_texts(tmp_path / "a.parquet", "text"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["txt", "jsonl", "csv", "tsv", "parquet", "txt.gz"]))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(content)
    try:
        assert all(isinstance(text, str) for text in read_texts(path))
    except (DataError, UsageError) as error:
        assert str(path) in str(error)


def _pipe(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))


def test_lines_of_standard_input_have_no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    _pipe(monkeypatch, b'{"text": "a"}\n')
    for kind in (None, "txt"):
        with pytest.raises(UsageError, match="'x'"):
            list(read_texts("-", "x", kind))
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError):
        list(read_texts("-"))


@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv", "tsv", "parquet"])
@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_standard_input_is_read_as_the_kind_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, ending: str
) -> None:
    content = COMPRESS[ending](_write(tmp_path / f"texts.{kind}", kind).read_bytes())
    _pipe(monkeypatch, content)
    assert list(read_texts("-", None if kind == "txt" else "text", kind + ending)) == _texts(kind)
    (tmp_path / "noname").write_bytes(content)
    assert list(read_texts(tmp_path / "noname", None, kind + ending)) == _texts(kind)


STRINGS: list[Any] = [
    pyarrow.string(),
    pyarrow.large_string(),
    *([pyarrow.string_view()] if int(pyarrow.__version__.split(".")[0]) >= 21 else []),  # older ones do not write it
    pyarrow.binary(),
    pyarrow.large_binary(),
    pyarrow.binary(5),
    pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
]


@pytest.mark.parametrize("kind", STRINGS, ids=str)
def test_every_type_of_strings_is_read(tmp_path: Path, kind: Any) -> None:
    values = pyarrow.array(["a cat", "a d\u00e9", "a cat"])
    plain = values if "string" in str(kind) else values.cast(pyarrow.binary())
    pyarrow.parquet.write_table(pyarrow.table({"text": plain.cast(kind)}), tmp_path / "a.parquet")
    assert list(read_texts(tmp_path / "a.parquet")) == values.to_pylist()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("more", [0, 1])
def test_a_line_is_at_most_so_long(tmp_path: Path, end: str, more: int) -> None:
    length = LONGEST - len(end) + more
    (tmp_path / "a.txt").write_text(f"a{end}{'b' * length}{end}c", newline="")
    texts = read_texts(tmp_path / "a.txt")
    assert next(texts) == "a"
    if more:
        with pytest.raises(DataError, match="line 2"):
            next(texts)
    else:
        assert [len(text) for text in texts] == [length, 1]


def test_a_file_without_lines_is_not_read_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "sparse.txt").touch()
    os.truncate(tmp_path / "sparse.txt", 1 << 40)
    with pytest.raises(DataError, match="line 1"):
        list(read_texts(tmp_path / "sparse.txt"))
