"""Test pieces of Parquet files: whole row groups where they are small, rows that are no texts, changes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whiten_runtime.errors import DataError, UsageError
from whiten_scale.inputs import parquet
from whiten_scale.inputs.pieces import ColumnChoice
from whiten_scale.places import find
from whiten_scale.plan import Plan, make_plan
from whiten_scale.records import Chunk


def write(path: Path, columns: dict[str, Any], rows: int = 10) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=rows)
    return path


def planned(path: Path, size: int, **choice: Any) -> Plan:
    return make_plan(find(str(path)), ColumnChoice(**choice), size)


def chunks(plan: Plan) -> list[Chunk]:
    return [chunk for number in range(len(plan.shards)) for chunk in plan.chunks(number)]


class Groups:
    """Stands for a file with row groups of these sizes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.metadata = self
        self.num_row_groups, self._sizes = len(sizes), sizes

    def row_group(self, number: int) -> Any:
        found = Groups([])
        found.num_rows = self._sizes[number]  # type: ignore[attr-defined]
        return found


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(1, 12))
def test_pieces_hold_every_row_once(sizes: list[int], size: int) -> None:
    pieces = list(parquet.cut(Groups(sizes), size))
    ends = [0, *(piece.end for piece in pieces)]
    assert [piece.start for piece in pieces] == ends[:-1]
    assert ends[-1] == sum(sizes)
    assert all(0 < piece.records <= size and piece.row == piece.start + 1 for piece in pieces)


def test_small_groups_stay_whole() -> None:
    found = [(piece.start, piece.end) for piece in parquet.cut(Groups([3, 3, 3, 20, 3]), 7)]
    assert found == [(0, 6), (6, 9), (9, 15), (15, 22), (22, 29), (29, 32)]


@pytest.mark.parametrize("size", [1, 7, 10, 25, 1000])
def test_the_rows_of_pieces(tmp_path: Path, size: int) -> None:
    texts = [f"text {number}" for number in range(95)]
    plan = planned(write(tmp_path / "a.parquet", {"text": texts, "n": list(range(95))}), size, id="n")
    found = chunks(plan)
    assert [text for chunk in found for text in chunk.texts] == texts
    assert [row for chunk in found for row in chunk.rows] == list(range(1, 96))
    assert [one for chunk in found for one in chunk.carried["n"].to_pylist()] == list(range(95))


def test_columns_of_any_type_are_carried(tmp_path: Path) -> None:
    columns = {
        "text": pyarrow.array(["a", "b"], pyarrow.large_string()),
        "when": pyarrow.array([1, 2**40 + 7], pyarrow.timestamp("ns")),
        "tags": [["x"], []],
        "kind": pyarrow.array(["k", "k"]).dictionary_encode(),
    }
    plan = planned(write(tmp_path / "a.parquet", columns), 99, keep=("when", "tags", "kind"))
    (chunk,) = chunks(plan)
    assert chunk.carried == pyarrow.table(columns).drop_columns("text").cast(plan.carried)


def test_rows_that_hold_no_text(tmp_path: Path) -> None:
    bad = pyarrow.array([b"a", b"\xff", None, b"d", b"e"]).view(pyarrow.string())
    path = write(tmp_path / "a.parquet", {"text": bad, "id": [1, 2, 3, None, 5]})
    (chunk,) = chunks(planned(path, 99, id="id"))
    assert (chunk.texts, chunk.rows, chunk.carried["id"].to_pylist()) == (["a", "e"], [1, 5], [1, 5])
    assert [(row.row, row.reason) for row in chunk.wrong] == [
        (2, "is not UTF-8"),
        (3, "holds null; wanted a string"),
        (4, "has no id at 'id'"),
    ]


def test_a_column_of_numbers_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": [1.5, float("nan")]})
    with pytest.raises(UsageError, match="column 'text' holds double; wanted strings, so choose another with --column"):
        planned(path, 9)


def test_files_with_other_types_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"text": ["a"], "id": [1]})
    write(tmp_path / "b.parquet", {"text": ["a"], "id": ["1"]})
    with pytest.raises(UsageError, match=r"'id' is int64 in 'a\.parquet' and string in 'b\.parquet'"):
        planned(tmp_path, 9, id="id")


def test_another_file_of_the_same_name_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": ["a", "b"]})
    plan = planned(path, 9)
    write(path, {"text": ["a", "c"]})
    with pytest.raises(DataError, match="was changed since the plan was made"):
        chunks(plan)


def test_what_is_no_parquet_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"a\.parquet: not a parquet file"):
        planned(tmp_path, 9)
