"""Test the numbers of files of vectors: those of Parquet columns of any type, and the decimals of JSON."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from support.cli import ok
from whiten import DataError, Encoder, WhitenError
from whiten_runtime.files.vectors import json_numbers, json_row, read_vectors

SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)
"""All float32 numbers: denormal ones, zeros of both signs, and the largest."""

ROUND = np.array([0.1, 0.5, 1e-3, 1e16, 16777216], np.float32).tolist()
"""Short decimals, and large whole numbers, as the nearest float32."""


@settings(max_examples=300, deadline=None)
@given(arrays(np.float32, array_shapes(max_dims=2), elements=SINGLES | st.sampled_from(ROUND)))
def test_decimals_are_the_shortest_that_give_the_same_number(values: np.ndarray) -> None:
    found = np.array(json_numbers(values))
    np.testing.assert_array_equal(found.astype(np.float32).view(np.int32), values.view(np.int32))
    for number, value in zip(found.ravel().tolist(), values.ravel(), strict=True):
        shortest = np.format_float_scientific(value, unique=True, trim="-")
        assert digits_of(repr(number)) <= digits_of(shortest)


def digits_of(text: str) -> int:
    """Return the number of significant digits of a decimal."""
    return len(text.lower().split("e")[0].replace(".", "").replace("-", "").strip("0"))


def test_numbers_that_are_no_float32_stay() -> None:
    for kind in (np.int8, np.uint8, np.float64):
        values = np.array([[1, 0, 3]], kind)
        assert json_numbers(values) == values.tolist()
    assert json_row("a", np.array([0.1, -2, 1e-20, 3e38], np.float32)) == (
        b'{"text":"a","embedding":[0.1,-2.0,1e-20,3e38]}'
    )


def test_commands_print_the_shortest_decimals(tiny_bundle: Path, tiny: Encoder, tmp_path: Path) -> None:
    texts = ("one", "two words", "three words here")
    lines = [json.loads(line)["embedding"] for line in ok("embed", tiny_bundle, *texts).stdout.splitlines()]
    document = json.loads(ok("embed", tiny_bundle, *texts, "--json").stdout)["embeddings"]
    assert lines == document
    np.testing.assert_array_equal(np.array(document, np.float32), tiny.encode(texts))
    ok("embed", tiny_bundle, *texts, "--out", tmp_path / "a.jsonl")
    np.testing.assert_array_equal(np.concatenate(list(read_vectors(tmp_path / "a.jsonl"))), tiny.encode(texts))
    for number in np.ravel(document):
        assert repr(float(number)) == repr(float(str(np.float32(number))))


KINDS = [
    pyarrow.list_(pyarrow.float32()),
    pyarrow.list_(pyarrow.float32(), 3),
    pyarrow.large_list(pyarrow.float64()),
    pyarrow.list_(pyarrow.float16(), 3),
    pyarrow.list_(pyarrow.int64()),
    pyarrow.list_(pyarrow.uint8(), 3),
    pyarrow.list_(pyarrow.decimal128(9, 2)),
]


def write(path: Path, values: Any, kind: Any, **options: Any) -> Path:
    if pyarrow.types.is_float16(kind.value_type):  # of which older versions of pyarrow take only numpy's
        values = [row and [None if number is None else np.float16(number) for number in row] for row in values]
    pyarrow.parquet.write_table(pyarrow.table({"embedding": pyarrow.array(values, kind)}), path, **options)
    return path


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("count", [1, 7, 10_000])
def test_columns_of_any_type_give_the_numbers_of_their_lists(tmp_path: Path, kind: Any, count: int) -> None:
    values = np.random.default_rng(0).integers(0, 2, (count, 3)).tolist()
    convert = Decimal if "decimal" in str(kind) else int
    rows = [list(map(convert, row)) for row in values]
    file = write(tmp_path / "v.parquet", rows, kind, row_group_size=900)
    parts = list(read_vectors(file))
    assert all(part.dtype == np.float32 for part in parts)
    np.testing.assert_array_equal(np.concatenate(parts), np.array(values, np.float32))


@settings(max_examples=100, deadline=None)
@given(
    st.data(),
    st.sampled_from(KINDS[:6]),
    st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=3)), max_size=6),
)
def test_lists_that_are_no_vectors_of_one_length_are_refused_as_lists_of_python_are(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: Any, values: list[list[int | None] | None]
) -> None:
    if pyarrow.types.is_fixed_size_list(kind):
        values = [None if row is None else [*row, 1, 2, 3][:3] for row in values]
    try:
        file = write(tmp_path_factory.mktemp("lists") / "v.parquet", values, kind)
    except pyarrow.lib.ArrowNotImplementedError:  # missing lists of a fixed size, by older versions of pyarrow
        if None not in values or not pyarrow.types.is_fixed_size_list(kind):
            raise
        reject()
    rows = [row for row in values if row is not None]
    whole = len(rows) == len(values) and all(None not in row for row in rows) and len({*map(len, rows)}) <= 1
    if whole and (not rows or rows[0]):
        np.testing.assert_array_equal(np.concatenate([[], *read_vectors(file)], axis=None), np.ravel(rows))
    else:
        with pytest.raises(DataError):
            list(read_vectors(file))


def test_numbers_beyond_float32_and_slices(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="vector 2 is not finite"):
        list(read_vectors(write(tmp_path / "v.parquet", [[1.0], [1e300]], pyarrow.list_(pyarrow.float64()))))
    column = pyarrow.array(np.arange(30, dtype=np.float32).reshape(10, 3).tolist(), KINDS[0]).slice(4, 5)
    pyarrow.parquet.write_table(pyarrow.table({"embedding": column}), tmp_path / "s.parquet")
    np.testing.assert_array_equal(
        np.concatenate(list(read_vectors(tmp_path / "s.parquet")))[:, 0], np.arange(12, 27, 3)
    )


@pytest.mark.parametrize(
    ("content", "named"),
    [
        *(
            (f"[0.5, 1]\n[{numbers}]\n", "line 2")
            for numbers in ('"1", "2"', '"1_0", 2', '"\uff11", 2', "true, 2", "null, 2", "[1], [2]")
        ),
        ('{"embedding": [1, 2], "embedding": [3, 4]}\n', "line 1"),
        ('{"embedding": [1]}\n{"vector": [3], "id": 1}\n', "line 2.*'vector', 'id'"),
    ],
)
def test_lines_without_one_list_of_numbers_are_refused(tmp_path: Path, content: str, named: str) -> None:
    (tmp_path / "v.jsonl").write_text(content, "utf-8")
    with pytest.raises(WhitenError, match=named):
        list(read_vectors(tmp_path / "v.jsonl"))


@pytest.mark.parametrize(
    ("kind", "rows", "named"),
    [
        (pyarrow.list_(pyarrow.string()), [["1", "1_0"]], "row 1"),
        (pyarrow.list_(pyarrow.binary()), [[b"1", b"1_0"]], "row 1"),
        (pyarrow.list_(pyarrow.bool_()), [[True, False], [False, False]], "row 1"),
        (pyarrow.list_(pyarrow.bool_(), 2), [[True, False]], "row 1"),
        (pyarrow.large_list(pyarrow.bool_()), [[False], [True]], "row 1"),
        (pyarrow.list_(pyarrow.list_(pyarrow.bool_())), [[[True]]], "row 1"),
        (pyarrow.list_(pyarrow.dictionary(pyarrow.int8(), pyarrow.string())), [["1", "2"]], "row 1"),
        (pyarrow.list_(pyarrow.float32()), [[1.0, 2.0], [3.0]], "row 2"),
        (pyarrow.list_(pyarrow.float32()), [[1.0], None], "row 2"),
        (pyarrow.list_(pyarrow.float32()), [[1.0], [None]], "row 2"),
    ],
    ids=str,
)
def test_rows_of_parquet_that_are_no_vector_are_named(tmp_path: Path, kind: Any, rows: Any, named: str) -> None:
    with pytest.raises(DataError, match=rf"v\.parquet: column 'embedding': {named} "):
        list(read_vectors(write(tmp_path / "v.parquet", rows, kind)))
