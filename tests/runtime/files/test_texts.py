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
from whiten_runtime.files import rows as records
from whiten_runtime.files.rows import place_of, read_texts

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
        ("a.jsonl", '"one"\n\n"two"\n', ["one", "two"]),
        ("a.jsonl", r'{"text": "\ud83d half"}', ["\ud83d half"]),
        ("a.jsonl", '{"n": 1, "text": "one", "n": 2, "more": {"n": 1, "n": 2}}', ["one"]),
        ("a.txt", "\ufeffone\r\ntwo", ["one", "two"]),
        ("a.tsv", 'text\tn\n"Hello he said\t1\nthird "q"\t3\n', ['"Hello he said', 'third "q"']),
    ],
    ids=["quoted lines", "strings", "half of a pair", "other keys twice", "mark and newlines", "quotes in a tsv"],
)
def test_what_files_hold(tmp_path: Path, name: str, content: str, texts: list[str]) -> None:
    (tmp_path / name).write_text(content, "utf-8", newline="")
    assert list(read_texts(tmp_path / name)) == texts


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


def test_quoted_fields_keep_their_ends_of_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('n,text\r1,"two\rlines"\r2,"three\r\nmore\n"\r', "utf-8", newline="")
    assert list(read_texts(tmp_path / "a.csv")) == ["two\rlines", "three\r\nmore\n"]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("length", [6, 7, 8, 9])
def test_ends_of_lines_at_the_longest_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, end: str
) -> None:
    monkeypatch.setattr(records, "LONGEST", 8)
    (tmp_path / "a.txt").write_text(f"a{end}{'b' * length}{end}c", newline="")
    if length + len(end) > 8:
        with pytest.raises(DataError, match="line 2 is longer than"):
            list(read_texts(tmp_path / "a.txt"))
    else:
        assert list(read_texts(tmp_path / "a.txt")) == ["a", "b" * length, "c"]


def test_strings_on_lines_have_no_columns(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('"one"\n')
    with pytest.raises(UsageError, match="has texts on its lines and no column 'body', only 'text'"):
        list(read_texts(tmp_path / "a.jsonl", "body"))


def _damaged_gzip() -> bytes:
    """Return a valid header, followed by a stream that zlib refuses."""
    content = bytearray(gzip.compress(b"some text\n" * 200, mtime=0))
    content[10:14] = b"\xff\xff\xff\xff"
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("a.doc", b"x", UsageError, "unknown kind of file"),
        ("a", b"x", UsageError, "unknown kind of file"),
        ("a.txt", b"fine\ncaf\xe9\n", DataError, "line 2 is not UTF-8 .byte 0xe9"),
        ("a.txt", b"\x00\x01\x02", DataError, "NUL byte"),
        *(
            (name, "text,id\na,1\n".encode(encoding), DataError, "holds a NUL byte, as UTF-16 does; wanted UTF-8")
            for name in ("a.txt", "a.jsonl", "a.csv", "a.tsv")
            for encoding in ("utf-16", "utf-16-le", "utf-16-be")
        ),
        ("a.txt.gz", b"not gzip", DataError, "not a complete .gz file"),
        ("a.txt.gz", gzip.compress(b"text\n" * 999, mtime=0)[:-20], DataError, "not a complete .gz file"),
        ("a.jsonl", b'{"text": "a"}\n{oops\n', DataError, "line 2 is not JSON"),
        ("a.jsonl", b'{"text": 7}\n', DataError, "line 1 holds the number 7 at 'text'; wanted a string; correct it"),
        ("a.jsonl", b'{"text": "a", "text": "b"}\n', DataError, "line 1 holds two values at 'text'; wanted a string"),
        ("a.jsonl", b'{"text": "a"}\n{"body": "a"}\n', DataError, "line 2 has no key 'text'"),
        ("a.csv", b"a,b\n1,2\n", UsageError, "choose one with --column"),
        ("a.csv", b"text,id,text\na,1,b\n", UsageError, "has the column 'text' twice; rename one of them"),
        ("a.csv", b"id;text\n1;x\n", UsageError, "has one column, 'id;text'; columns of .csv files end at commas"),
        *(
            (name, line + b"\nid,text\n1,x\n", DataError, f"{name}: line 1 names no column; wanted the header there")
            for name, line in [
                ("a.csv", b""),
                ("a.csv", b"\r"),
                ("a.csv", b"  "),
                ("a.csv", b",,"),
                ("a.csv", b'""'),
                ("a.csv", b"\xef\xbb\xbf"),
                ("a.tsv", b""),
                ("a.tsv", b" \t "),
            ]
        ),
        ("a.csv", b"id,text\n1,x\n2\n", DataError, "line 3 has 1 columns"),
        ("a.csv", b"text\nHello, world\n", DataError, "line 2 has 2 columns; wanted 1"),
        ("a.csv", b'text\n"never closed\nnext\n', DataError, "unexpected end of data"),
        ("a.jsonl", b'"a"\n' + b"[" * 100_000, DataError, "line 2 is not JSON"),
        ("a.txt.gz", _damaged_gzip(), DataError, "not a complete .gz file"),
        *((f"a.{ending}", b"", DataError, "not a complete") for ending in ("txt.gz", "txt.zst", "jsonl.gz", "csv.zst")),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b", "n": ' + b"1" * 5000 + b"}\n", DataError, "line 2 is not JSON"),
        ("a.parquet", b"nonsense", DataError, "not a parquet file"),
    ],
)
def test_malformed_files_are_refused(
    tmp_path: Path, name: str, content: bytes, error: type[Exception], message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(error, match=message) as caught:
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
    for rest in (b"junk", b"\n", b"junk" * 9000, bytes(8) + b"junk", second + b"junk", second[:3], second[:-1]):
        path.write_bytes(first + rest)
        with pytest.raises(DataError, match=f"a.txt{ending}: not a complete {ending} file"):
            list(read_texts(path))


def test_missing_files_and_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        list(read_texts(tmp_path / "a.txt"))
    (tmp_path / "b.txt").mkdir()
    with pytest.raises(UsageError, match="is a directory"):
        list(read_texts(tmp_path / "b.txt"))


def test_plain_text_has_no_columns(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no column 'x', only 'text'"):
        list(read_texts(_write(tmp_path / "a.txt", "txt"), "x"))


def test_rows_of_parquet_without_a_string_are_refused(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="column 'n' holds int64; wanted strings"):
        list(read_texts(tmp_path / "a.parquet"))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", None]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="row 2 holds null; wanted a string"):
        list(read_texts(tmp_path / "a.parquet"))
    damaged = pyarrow.array([b"a", b"\xff"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": damaged}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="row 2 is not UTF-8"):
        list(read_texts(tmp_path / "a.parquet"))


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
    with pytest.raises(UsageError, match="have no column 'x'; say with --kind what else they are, such as jsonl"):
        list(read_texts("-", "x"))
    with pytest.raises(UsageError, match="no column 'x', only 'text'"):
        list(read_texts("-", "x", "txt"))
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="is closed"):
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


@pytest.mark.parametrize("kind", ["doc", "", "gz", "jsonl.gzip", "a/b.jsonl "])
def test_kinds_that_are_unknown_are_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    with pytest.raises(UsageError, match="is no kind of file that can be read; wanted .txt, .jsonl"):
        list(read_texts(tmp_path / "a.txt", None, kind))


@pytest.mark.parametrize("ending", [".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("cut", [False, True])
def test_damaged_compressed_files_are_refused(tmp_path: Path, ending: str, cut: bool) -> None:
    whole = COMPRESS[ending]("".join(f"{number} text\n" for number in range(9999)).encode())
    (tmp_path / f"a.txt{ending}").write_bytes(whole[: len(whole) // 2] if cut else b"no such file")
    with pytest.raises(DataError, match=rf"not a complete \{ending} file"):
        list(read_texts(tmp_path / f"a.txt{ending}"))


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


def test_bytes_that_are_no_text_are_refused_with_their_row(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": [b"a", b"\xff"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="row 2 is not UTF-8"):
        list(read_texts(tmp_path / "a.parquet"))


def test_line_without_an_end_is_not_read_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LONGEST", 10)
    (tmp_path / "a.txt").write_text("123456789\n12345678901\n", "utf-8")
    stream = read_texts(tmp_path / "a.txt")
    assert next(stream) == "123456789"
    with pytest.raises(DataError, match="line 2 is longer than"):
        next(stream)
    (tmp_path / "sparse.txt").touch()
    os.truncate(tmp_path / "sparse.txt", 1 << 30)
    monkeypatch.setattr(records, "LONGEST", 1 << 20)
    with pytest.raises(DataError, match="line 1 is longer than 1 MiB"):
        list(read_texts(tmp_path / "sparse.txt"))
