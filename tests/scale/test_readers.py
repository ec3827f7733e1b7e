"""Test that pieces of files hold the texts that `whiten embed` reads, each once, wherever the files are cut."""

import csv
import gzip
import io
import lzma
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files import rows as records
from whiten_runtime.files.rows import read_texts
from whiten_scale.parquet import cut_rows
from whiten_scale.places import Folder, find
from whiten_scale.plan import Job, read_job
from whiten_scale.planner import make_job
from whiten_scale.readers import Chunk, ColumnChoice, read_pieces

FIELD = st.text(st.sampled_from('ab,"\n\r\té日\u2028 \x85'), max_size=12)
COMMON = {"task": "embed", "bundle": "b", "bundle_sha256": "0" * 64, "options": {}, "versions": {}}


def planned(path: Path, size: int = 3, **choice: Any) -> Job:
    return make_job(COMMON, find(str(path)), ColumnChoice(**choice), size)


def chunks(job: Job) -> list[Chunk]:
    return [
        chunk for number in range(len(job.shards)) for chunk in read_pieces(job.files, job.shards[number], job.carried)
    ]


def column(job: Job, index: int) -> list[Any]:
    return [value for chunk in chunks(job) for value in chunk.table.column(index).to_pylist()]


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def parquet(path: Path, columns: dict[str, Any], rows: int = 10) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=rows)
    return path


def quoted(rows_of_fields: Sequence[tuple[str, str]], end: str) -> str:
    def written(field: str) -> str:
        return '"' + field.replace('"', '""') + '"' if set(field) & set(',"\n\r') else field

    return "".join(f"{written(a)},{written(b)}{end}" for a, b in [("n", "text"), *rows_of_fields])


def check_texts(content: str, name: str, size: int, wanted: list[str]) -> None:
    """Check that a file has these texts for `whiten embed`, and for a plan of shards of `size` records."""
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), name, content)
        assert list(read_texts(path)) == wanted
        if not wanted:
            return
        job = planned(path, size)
        assert column(job, 0) == wanted
        if not name.endswith(".gz"):
            assert max(map(job.records, range(len(job.shards)))) <= size


@given(st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=12), st.sampled_from(["\n", "\r\n"]), st.integers(1, 5))
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_quoted_ends_of_lines_are_never_cut(name: str, table: list[tuple[str, str]], end: str, size: int) -> None:
    content = quoted(table, end)
    check_texts(content, name, size, [row["text"] for row in csv.DictReader(io.StringIO(content, newline=""))])


def test_rows_are_lines_and_ids_and_columns_are_carried(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", 'id,text,n\nx,"one\ntwo",1\n\ny,three,2\n')
    write(tmp_path, "b.jsonl", '{"text": "four", "id": "z", "n": "3"}\n{"text": "\\ud800", "id": "é", "n": null}\n')
    job = planned(tmp_path, 99, id="id", keep=("n",))
    found = [list(chunk.table.to_pydict().values()) for chunk in chunks(job)]
    assert found == [
        [["one\ntwo", "three"], ["a.csv", "a.csv"], [2, 5], ["x", "y"], ["1", "2"]],
        [["four", "\ufffd"], ["b.jsonl", "b.jsonl"], [1, 2], ["z", "é"], ["3", None]],
    ]
    assert not job.carried.field("id").nullable


@pytest.mark.parametrize("name", ["std::vector.txt", "a b[1]?ü%20#.txt"])
def test_names_of_files_are_paths(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, "one\n")
    assert column(planned(tmp_path), 1) == [name]


WRONG = [
    ("a.jsonl", b'{"text": 5}', "5"),
    ("a.jsonl", b'{"text": NaN}', "nan"),
    ("a.jsonl", b'{"text": "a", "text": "b"}', "'text'"),
    ("a.jsonl", b'{"word": "a"}', "'text'"),
    ("a.jsonl", b"[]", "list"),
    ("a.jsonl", b'{"text": ', "JSON"),
    ("a.txt", b"caf\xe9", "0xe9"),
    ("a.txt", b"a\0b", "NUL"),
    ("a.csv", b"1,b,c", "3 columns"),
    ("a.csv", b"1,\xff", "0xff"),
    ("a.tsv", b"1", "1 columns"),
]
FIRST = {"a.jsonl": b'{"text": "one"}\n', "a.txt": b"one\n", "a.csv": b"n,text\n1,one\n", "a.tsv": b"n\ttext\n1\tone\n"}


@pytest.mark.parametrize(("name", "line", "reason"), WRONG)
def test_a_wrong_row_is_told_with_its_line(tmp_path: Path, name: str, line: bytes, reason: str) -> None:
    last = b'"last"\n' if name == "a.jsonl" else FIRST[name].splitlines()[-1] + b"\n"
    (chunk,) = chunks(planned(write(tmp_path, name, FIRST[name] + line + b"\n" + last), 99))
    place = FIRST[name].count(b"\n") + 1
    assert [(row.file, row.row, reason in row.reason) for row in chunk.wrong] == [(name, place, True)]
    assert (len(chunk.table), chunk.records) == (2, 3)


REFUSED = [
    ("a.csv", 'n,text\n1,"open\n', {}, "line 2"),
    ("a.csv", 'n,text\n1,"a"b\n', {}, "line 2"),
    ("a.csv", b"n,te\xff\n1,b\n", {}, "0xff"),
    ("a.csv", "\nn,text\n1,b\n", {}, "line 1"),
    ("a.csv", "n,t\n1,b\n", {}, "--column"),
    ("a.csv", "n,text\n1,b\n", {"id": "key"}, "'key'"),
    ("a.txt", "one\n", {"id": "key"}, "'key'"),
    ("a.jsonl", '{"text": "a", "tags": []}\n', {"keep": ("tags",)}, "'tags'"),
    ("a.jsonl", '{"text": "a", "n": 1, "n": 1}\n', {"keep": ("n",)}, "'n'"),
    ("a.jsonl", '{"text": "a"}\n', {"keep": ("tags",)}, "'tags'"),
    ("a.txt", "", {}, "no text"),
    ("a.txt.gz", gzip.compress(b"one\n" * 1000, mtime=0)[:-9], {}, ".gz"),
    ("a.txt.xz", lzma.compress(b"one\n") + b"two\n", {}, ".xz"),
    ("a.parquet", b"PAR1 no", {}, "parquet"),
]


@pytest.mark.parametrize(("name", "content", "choice", "reason"), REFUSED)
def test_what_no_plan_can_be_made_of(tmp_path: Path, name: str, content: Any, choice: Any, reason: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises((UsageError, DataError)) as error:
        planned(path, **choice)
    assert reason in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["a.txt", "a.parquet"])
def test_a_changed_file_is_refused_when_it_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write(tmp_path, "a.txt", "one\ntwo\n")
    parquet(tmp_path / "a.parquet", {"text": ["one", "two"]})
    job = planned(path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"two", b"too"))
    os.utime(path, (1e9, 1e9))
    with pytest.raises(DataError, match=name):
        chunks(job)


def test_a_field_without_an_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LONGEST", 20)
    with pytest.raises(DataError, match="line 3"):
        planned(write(tmp_path, "a.csv", 'n,text\n1,"12345678\n12345678\n12345678\n'))


class Groups:
    """Stands for a Parquet file with row groups of these sizes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.metadata = self
        self.num_row_groups, self._sizes = len(sizes), sizes

    def row_group(self, number: int) -> Any:
        found = Groups([])
        found.num_rows = self._sizes[number]  # type: ignore[attr-defined]
        return found


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(1, 12))
def test_pieces_of_parquet_hold_every_row_once(sizes: list[int], size: int) -> None:
    pieces = list(cut_rows(Groups(sizes), size))
    ends = [0, *(end for _, end in pieces)]
    assert [start for start, _ in pieces] == ends[:-1]
    assert ends[-1] == sum(sizes)
    assert all(0 < end - start <= size for start, end in pieces)


def test_rows_are_right_in_any_order_of_shards(tmp_path: Path) -> None:
    job = planned(parquet(tmp_path / "a.parquet", {"text": [f"text {row}" for row in range(95)]}, rows=40), 7)
    for order in ([3, 1, 2, 2, 0], range(len(job.shards)), [9, 12, 0, 5]):
        for number in order:
            (piece,) = job.shards[number]
            tables = [chunk.table for chunk in read_pieces(job.files, [piece], job.carried)]
            wanted = [f"text {row}" for row in range(piece.start, piece.end)]
            assert pyarrow.concat_tables(tables)["text"].to_pylist() == wanted


def test_columns_of_any_type_are_carried(tmp_path: Path) -> None:
    columns = {
        "text": pyarrow.array(["a", "b"], pyarrow.large_string()),
        "when": pyarrow.array([1, 2**40 + 7], pyarrow.timestamp("ns")),
        "tags": [["x"], []],
        "kind": pyarrow.array(["k", "k"]).dictionary_encode(),
    }
    job = planned(parquet(tmp_path / "a.parquet", columns), 99, keep=("when", "tags", "kind"))
    (chunk,) = chunks(job)
    assert chunk.table.select([3, 4, 5]) == pyarrow.table(columns).drop_columns("text").cast(job.carried)


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"a.text": ["one cat", "two dog", "six"]}, False),
        ({"tags": [["x", "z"], ["z"], []]}, False),
        ({"unused": ["a", "c", "d"]}, True),
    ],
    ids=str,
)
def test_parquet_with_the_same_footer_is_known_by_what_is_read_of_it(
    tmp_path: Path, changes: dict[str, Any], same: bool, dictionary: bool
) -> None:
    columns = {"a.text": ["one cat", "two cat", "six"], "tags": [["x", "y"], ["z"], []], "unused": ["a", "b", "d"]}
    hashes = set()
    for name, content in (("one", columns), ("other", columns | changes)):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "a.parquet"
        pyarrow.parquet.write_table(pyarrow.table(content), path, compression="none", use_dictionary=dictionary)
        (file,) = planned(path, column="a.text", keep=("tags",)).files
        hashes.add(file.sha256)
    assert (len(hashes) == 1) is same


def test_rows_of_parquet_that_hold_no_text(tmp_path: Path) -> None:
    bad = pyarrow.array([b"a", b"\xff", None, b"d", b"e"]).view(pyarrow.string())
    job = planned(parquet(tmp_path / "a.parquet", {"text": bad, "id": [1, 2, 3, None, 5]}), 99, id="id")
    (chunk,) = chunks(job)
    assert (column(job, 0), column(job, 2), column(job, 3)) == (["a", "e"], [1, 5], [1, 5])
    assert [row.row for row in chunk.wrong] == [2, 3, 4]


def test_columns_of_parquet_that_are_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"text": [1.5, float("nan")]})
    with pytest.raises(UsageError, match="'text'"):
        planned(path)
    parquet(path, {"text": ["a"], "id": [1]})
    parquet(tmp_path / "b.parquet", {"text": ["a"], "id": ["1"]})
    with pytest.raises(UsageError, match=r"'id'.*a\.parquet.*b\.parquet"):
        planned(tmp_path, id="id")


@pytest.mark.parametrize("content", ["[]", "{", "[" * 100_000], ids=["list", "cut", "deep"])
def test_a_damaged_plan_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "_plan.json").write_text(content)
    with pytest.raises(UsageError, match=r"_plan\.json"):
        read_job(Folder(str(tmp_path)))
