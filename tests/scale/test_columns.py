"""Test that files whose columns have different types are carried into one type, which loses no value."""

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from whiten_runtime.errors import UsageError
from whiten_scale.places import find
from whiten_scale.plan import Job
from whiten_scale.planner import make_job
from whiten_scale.readers import ColumnChoice, read_pieces

S, L = pyarrow.string(), pyarrow.large_string()
SINCE_21 = int(pyarrow.__version__.split(".")[0]) >= 21
V = pyarrow.string_view() if SINCE_21 else S  # older ones do not write it
D = pyarrow.dictionary(pyarrow.int32(), S)
SMALL = pyarrow.dictionary(pyarrow.int8(), S) if SINCE_21 else S  # older ones read it as D
I4, I8, U8, F4, F8 = pyarrow.int32(), pyarrow.int64(), pyarrow.uint64(), pyarrow.float32(), pyarrow.float64()
N, B, LB = pyarrow.null(), pyarrow.binary(), pyarrow.large_binary()


def planned(path: Path, **choice: Any) -> Job:
    common = {"task": "embed", "bundle": "b", "bundle_sha256": "0" * 64, "options": {}, "versions": {}}
    return make_job(common, find(str(path)), ColumnChoice(**choice), 99)


def column(job: Job, index: int) -> list[Any]:
    return [value for chunk in _chunks(job) for value in chunk.table.column(index).to_pylist()]


def wrong(job: Job) -> list[tuple[str, int]]:
    return [(row.file, row.row) for chunk in _chunks(job) for row in chunk.wrong]


def _chunks(job: Job) -> Any:
    return [chunk for pieces in job.shards for chunk in read_pieces(job.files, pieces, job.carried)]


def write_parquet(folder: Path, *columns: Any) -> None:
    for name, values in zip("abcdef", columns, strict=False):
        table = pyarrow.table({"text": ["x"] * len(values), "n": values})
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet")


def write_json(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


CARRIED = [
    (["a"], S, ["b"], L, "large_string"),
    (["a"], S, ["b"], V, "string"),
    (["a"], D, ["b"], SMALL, "string"),
    ([None], N, [None], N, "string"),
    (["a"], S, ["é".encode()], LB, "large_string"),
    ([b"a"], B, [b"\xff"], LB, "large_binary"),
    ([1], I8, [2], I4, "int64"),
    ([1], I4, [2.5], F8, "double"),
    ([1.5], F4, [2.5], F8, "double"),
    ([True], pyarrow.bool_(), [None], N, "bool"),
    ([1], pyarrow.timestamp("s"), [2], pyarrow.timestamp("ms"), "timestamp[ms]"),
]


@pytest.mark.parametrize(("first", "first_type", "second", "second_type", "wanted"), CARRIED)
def test_columns_of_parquet_have_one_type(
    tmp_path: Path, first: list[Any], first_type: Any, second: list[Any], second_type: Any, wanted: str
) -> None:
    columns = [pyarrow.array(first, first_type), pyarrow.array(second, second_type)]
    for order in (columns, columns[::-1]):
        write_parquet(tmp_path, *order)
        job = planned(tmp_path, keep=("n",))
        assert str(job.carried.field("n").type) == wanted
        values = [value for one in order for value in one.cast(job.carried.field("n").type).to_pylist()]
        assert column(job, 3) == values
        assert wrong(job) == []


def test_values_that_the_common_type_cannot_hold_are_wrong_rows(tmp_path: Path) -> None:
    write_parquet(tmp_path, pyarrow.array([2**53 + 1, 7], I8), pyarrow.array([0.5], F8))
    job = planned(tmp_path, keep=("n",))
    assert column(job, 3) == [7.0, 0.5]
    assert wrong(job) == [("a.parquet", 1)]
    write_parquet(tmp_path, pyarrow.array(["a"], S), pyarrow.array([b"\xff", b"b"], B))
    job = planned(tmp_path, keep=("n",))
    assert column(job, 3) == ["a", "b"]
    assert wrong(job) == [("b.parquet", 1)]


@pytest.mark.parametrize("values", [[1], [True], [Decimal(1)], [["a"]]], ids=str)
def test_types_without_a_common_one_are_refused_with_two_files(tmp_path: Path, values: list[Any]) -> None:
    write_parquet(tmp_path, pyarrow.array(["a"], S), pyarrow.array(["a"], S), pyarrow.array(values))
    with pytest.raises(UsageError, match=r"'n'.*a\.parquet.*c\.parquet"):
        planned(tmp_path, keep=("n",))


def test_ids_have_one_type_and_none_is_null(tmp_path: Path) -> None:
    write_parquet(tmp_path, pyarrow.array(["1", "2"], S), pyarrow.array(["3", None], L), pyarrow.array([None], N))
    job = planned(tmp_path, id="n")
    assert column(job, 3) == ["1", "2", "3"]
    assert wrong(job) == [("b.parquet", 2), ("c.parquet", 1)]


@pytest.mark.parametrize("kind", [S, L, V, D, B, LB], ids=str)
def test_texts_of_every_type_of_strings(tmp_path: Path, kind: Any) -> None:
    plain = pyarrow.array(["a cat", "the dog", None])
    plain = plain.cast(B) if kind in (B, LB) else plain
    pyarrow.parquet.write_table(pyarrow.table({"text": plain.cast(kind)}), tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([None], N)}), tmp_path / "b.parquet")
    job = planned(tmp_path)
    assert column(job, 0) == ["a cat", "the dog"]
    assert wrong(job) == [("a.parquet", 3), ("b.parquet", 1)]


JSON = [
    ([1] * 1500 + [1.5], "double", []),
    ([1.5, 1], "double", []),
    ([None] * 1100 + [1], "int64", []),
    ([None] * 3, "string", []),
    ([None, "a"], "string", []),
    ([1, 2**63], "uint64", []),
    ([True, None, False], "bool", []),
    ([0.5, 2**53 + 1], "double", [2]),
    ([1, -1, 2**63], "int64", [3]),
    ([1, "a"], "int64", [2]),
    (["a", 1], "string", [2]),
    ([1, True], "int64", [2]),
    ([1, [1]], "int64", [2]),
]


@pytest.mark.parametrize(("values", "wanted", "rows"), JSON)
def test_a_column_of_json_has_the_widest_type_of_the_file(
    tmp_path: Path, values: list[Any], wanted: str, rows: list[int]
) -> None:
    path = write_json(tmp_path / "a.jsonl", [{"text": "x", "n": value} for value in values])
    job = planned(path, keep=("n",))
    assert str(job.carried.field("n").type) == wanted
    assert wrong(job) == [("a.jsonl", row) for row in rows]
    assert column(job, 3) == [value for row, value in enumerate(values, 1) if row not in rows]


def test_absent_keys_are_null(tmp_path: Path) -> None:
    write_json(tmp_path / "a.jsonl", [{"text": "x"}] * 1199 + [{"text": "x", "n": 1}])
    write_json(tmp_path / "b.jsonl", ["x", {"text": "y"}])
    job = planned(tmp_path, keep=("n",))
    assert column(job, 3) == [None] * 1199 + [1, None, None]
    assert wrong(job) == []
    with pytest.raises(UsageError, match="'m'"):
        planned(tmp_path, keep=("m",))


def test_ids_that_utf8_cannot_hold_are_wrong_rows(tmp_path: Path) -> None:
    ids = ["\ud83d", "\ud83e", "\ud83d\ude00", "\ufffd", "a\udc00b", "\ude00\ud83d", "\ufffd\ud83d"]
    path = write_json(tmp_path / "a.jsonl", [{"text": "x", "n": one} for one in ids])
    job = planned(path, id="n")
    assert wrong(job) == [("a.jsonl", row) for row in (1, 2, 5, 6, 7)]
    assert column(job, 3) == ["\U0001f600", "\ufffd"]
    carried = ["\ufffd", "\ufffd", "\U0001f600", "\ufffd", "a\ufffdb", "\ufffd\ufffd", "\ufffd\ufffd"]
    assert column(planned(path, keep=("n",)), 3) == carried


def test_whole_numbers_of_one_file_meet_fractions_of_another(tmp_path: Path) -> None:
    write_json(tmp_path / "a.jsonl", [{"text": "x", "n": 1}])
    write_json(tmp_path / "b.jsonl", [{"text": "x", "n": 1.5}])
    write_parquet(tmp_path, pyarrow.array([3], I4))
    assert column(planned(tmp_path, keep=("n",)), 3) == [1.0, 3.0, 1.5]
