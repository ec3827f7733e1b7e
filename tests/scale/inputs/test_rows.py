"""Test that pieces of files hold the texts that `whiten embed` reads, each once, wherever the files are cut."""

import gzip
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.texts import read_texts
from whiten_scale.inputs import lines, rows
from whiten_scale.inputs.pieces import ColumnChoice
from whiten_scale.places import find
from whiten_scale.plan import Plan, make_plan
from whiten_scale.records import Chunk

FIELD = st.text(st.sampled_from('ab,"\n\r\té日\u2028 \x85'), max_size=12)


def planned(path: Path, size: int = 3, **choice: Any) -> Plan:
    return make_plan(find(str(path)), ColumnChoice(**choice), size)


def chunks(plan: Plan) -> list[Chunk]:
    return [chunk for number in range(len(plan.shards)) for chunk in plan.chunks(number)]


def texts(plan: Plan) -> list[str]:
    return [text for chunk in chunks(plan) for text in chunk.texts]


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def quoted(rows_of_fields: Sequence[tuple[str, str]], end: str) -> str:
    def written(field: str) -> str:
        return '"' + field.replace('"', '""') + '"' if set(field) & set(',"\n\r') else field

    return "".join(f"{written(a)},{written(b)}{end}" for a, b in [("n", "text"), *rows_of_fields])


def same_as_embed(content: str | bytes, name: str, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), name, content)
        wanted = list(read_texts(path))
        if not wanted:
            return
        plan = planned(path, size)
        assert texts(plan) == wanted
        assert sum(plan.records(number) for number in range(len(plan.shards))) >= len(wanted)
        if not name.endswith(".gz"):
            assert max(map(plan.records, range(len(plan.shards)))) <= size


@given(st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=12), st.sampled_from(["\n", "\r\n"]), st.integers(1, 5))
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_quoted_ends_of_lines_are_never_cut(name: str, table: list[tuple[str, str]], end: str, size: int) -> None:
    same_as_embed(quoted(table, end), name, size)


@given(st.lists(st.text(st.sampled_from('a"é日\r\x85 '), max_size=9), min_size=1), st.integers(1, 5), st.booleans())
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_lines(name: str, found: list[str], size: int, ended: bool) -> None:
    same_as_embed("\n".join(found) + ("\n" if ended else ""), name, size)


@given(st.lists(st.one_of(st.just(""), st.text(max_size=9).map(json.dumps)), min_size=1), st.integers(1, 5))
def test_strings_of_json(found: list[str], size: int) -> None:
    same_as_embed("\n".join(found), "a.jsonl", size)


@given(st.lists(st.text(st.sampled_from('a"é日 '), min_size=1, max_size=9), min_size=1), st.integers(1, 5))
def test_fields_between_tabs(found: list[str], size: int) -> None:
    same_as_embed("n\ttext\n" + "".join(f"{index}\t{one}\n" for index, one in enumerate(found)), "a.tsv", size)


def test_cuts_within_a_block_and_between_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "a.txt", "\n".join(f"text {number}" for number in range(100)))
    wanted = planned(path, 7)
    for block in (1, 2, 9, 64):
        monkeypatch.setattr(lines, "_BLOCK", block)
        assert planned(path, 7) == wanted
    assert [piece.row for shard in wanted.shards for piece in shard] == list(range(1, 101, 7))


def test_rows_are_lines_and_ids_and_columns_are_carried(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", 'id,text,n\nx,"one\ntwo",1\n\ny,three,2\n')
    write(tmp_path, "b.jsonl", '{"text": "four", "id": "z", "n": "3"}\n{"text": "five", "id": "é", "n": null}\n')
    plan = planned(tmp_path, 99, id="id", keep=("n",))
    found = chunks(plan)
    assert [(chunk.file, chunk.rows, chunk.carried.to_pydict()) for chunk in found] == [
        ("a.csv", [2, 5], {"id": ["x", "y"], "n": ["1", "2"]}),
        ("b.jsonl", [1, 2], {"id": ["z", "é"], "n": ["3", None]}),
    ]
    assert not plan.carried.field("id").nullable


def test_types_of_json_are_those_of_the_first_values(tmp_path: Path) -> None:
    row = '{"text": "a", "n": null, "x": 1.5, "b": true}\n{"text": "b", "n": 3, "x": 2, "b": false}\n'
    plan = planned(write(tmp_path, "a.jsonl", row + '{"text": "c", "n": 1.5}\n'), keep=("n", "x", "b"))
    assert [str(field.type) for field in plan.carried] == ["int64", "double", "bool"]
    (chunk,) = chunks(plan)
    assert chunk.carried.to_pydict() == {"n": [None, 3], "x": [1.5, 2.0], "b": [True, False]}
    assert [(row.row, row.reason) for row in chunk.wrong] == [
        (3, "holds the number 1.5 at 'n'; wanted int64, as in the first row")
    ]


WRONG = [
    ("a.jsonl", b'{"text": 5}', "holds the number 5 at 'text'; wanted a string"),
    ("a.jsonl", b'{"text": NaN}', "holds the number nan at 'text'; wanted a string"),
    ("a.jsonl", b'{"text": null}', "holds null at 'text'; wanted a string"),
    ("a.jsonl", b'{"text": ["a"]}', "holds a list at 'text'; wanted a string"),
    ("a.jsonl", b'{"word": "a"}', "has no key 'text'"),
    ("a.jsonl", b"[]", "holds a list; wanted a string or an object"),
    ("a.jsonl", b'{"text": ', "is not JSON (Expecting value: line 1 column 10 (char 9))"),
    ("a.jsonl", b'{"text": "\xff"}', "is not UTF-8 (byte 0xff)"),
    ("a.txt", b"caf\xe9", "is not UTF-8 (byte 0xe9)"),
    ("a.txt", b"a\0b", "holds a NUL byte; wanted UTF-8 text"),
    ("a.csv", b"1,b,c", "has 3 columns; wanted 2"),
    ("a.csv", b"1,\xff", "is not UTF-8 (byte 0xff)"),
    ("a.tsv", b"1", "has 1 columns; wanted 2"),
]
FIRST = {"a.jsonl": b'{"text": "one"}\n', "a.txt": b"one\n", "a.csv": b"n,text\n1,one\n", "a.tsv": b"n\ttext\n1\tone\n"}


@pytest.mark.parametrize(("name", "line", "reason"), WRONG)
def test_a_wrong_row_is_told_with_its_line(tmp_path: Path, name: str, line: bytes, reason: str) -> None:
    last = b'"last"\n' if name == "a.jsonl" else FIRST[name].splitlines()[-1] + b"\n"
    plan = planned(write(tmp_path, name, FIRST[name] + line + b"\n" + last), 99)
    (chunk,) = chunks(plan)
    place = FIRST[name].count(b"\n") + 1
    assert [(row.file, row.row, row.reason) for row in chunk.wrong] == [(name, place, reason)]
    assert len(chunk.texts) == 2
    assert chunk.records == 3


REFUSED = [
    ("a.csv", 'n,text\n1,"open\n', {}, "row 2: unexpected end of data; correct its quotes"),
    ("a.csv", 'n,text\n1,"a"b\n', {}, "row 2: ',' expected after '\"'; correct its quotes"),
    ("a.csv", b"n,te\xff\n1,b\n", {}, "its header is not UTF-8 (byte 0xff); correct it"),
    ("a.csv", "n,t\n1,b\n", {}, "has the columns 'n', 't'; choose one with --column"),
    ("a.csv", "n,text\n1,b\n", {"id": "key"}, "has no column 'key', only 'n', 'text'"),
    ("a.txt", "one\n", {"id": "key"}, "has lines of plain text and no column 'key', only 'text'"),
    ("a.jsonl", '{"text": "a", "tags": []}\n', {"keep": ("tags",)}, "holds a list at 'tags'; only texts and numbers"),
    ("a.jsonl", '{"text": "a"}\n', {"keep": ("tags",)}, "has no column 'tags', only 'text'"),
    ("a.txt", "", {}, "holds no text, nor does any other file"),
]


@pytest.mark.parametrize(("name", "content", "choice", "reason"), REFUSED)
def test_what_no_plan_can_be_made_of(tmp_path: Path, name: str, content: Any, choice: Any, reason: str) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises((UsageError, DataError)) as error:
        planned(path, **choice)
    assert reason in str(error.value)
    assert str(path) in str(error.value)


def test_a_changed_file_is_refused_when_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "one\ntwo\n")
    plan = planned(path)
    path.write_text("one\ntoo\n")
    with pytest.raises(DataError, match="was changed since the plan was made"):
        texts(plan)


def test_a_broken_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\n" * 1000)[:-9])
    with pytest.raises(DataError, match="not a complete gzip file"):
        planned(path)


def test_a_field_without_an_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST", 20)
    with pytest.raises(DataError, match=r"row 3 is in a field of more than 0 MiB; close its quotes"):
        planned(write(tmp_path, "a.csv", 'n,text\n1,"12345678\n12345678\n12345678\n'))


def test_chunks_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "AT_ONCE", 2)
    plan = planned(write(tmp_path, "a.txt", "a\nb\nc\nd\ne\n"), 99)
    assert [chunk.texts for chunk in chunks(plan)] == [["a", "b"], ["c", "d"], ["e"]]
