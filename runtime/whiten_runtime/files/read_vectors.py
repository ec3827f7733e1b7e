"""Read vectors from files, some at a time: .npy, .parquet and .jsonl."""

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import DataError, UsageError, check_file, one_line
from whiten_runtime.files.parquet import import_parquet, rows_at_once
from whiten_runtime.files.records import (
    WrongRowError,
    choose_column,
    line_text,
    parse_json,
    parse_records,
    records_of,
    type_of,
)
from whiten_runtime.files.vector_metadata import is_header, load_npy, map_npy, read_metadata, sidecar_of

Rows = NDArray[np.float32]

USUAL_COLUMNS = ("embedding", "vector")
"""Columns that are taken when the caller names none."""

_ROWS_PER_BLOCK = 4096


def read_vectors(path: str | Path, column: str | None = None) -> Iterator[Rows]:
    """Yield the vectors of a file in order, float32 [m, d] with m up to some thousands.

    A .npy file holds [n, d] and is not read as a whole. A .parquet file has a column of lists. Each line of a .jsonl
    file is a list, or an object with a list; a first line with metadata is skipped.
    """
    file = Path(path)
    read = _READERS.get(file.suffix.lower())
    if read is None:
        raise UsageError(f"'{file}': unknown kind of file for vectors; wanted {', '.join(_READERS)}")
    check_file(file, "wanted a file of vectors")
    _check_precision(file)
    start, width = 0, None
    for rows in read(file, column):
        if not len(rows):
            continue
        if rows.ndim != 2 or not rows.shape[1] or (width is not None and rows.shape[1] != width):
            raise DataError(f"{file}: vector {start + 1} has shape {rows.shape[1:]}; wanted one length throughout")
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            raise DataError(f"{file}: vector {start + int(finite.argmin()) + 1} is not finite; leave it out")
        width = rows.shape[1]
        start += len(rows)
        yield rows


def _check_precision(file: Path) -> None:
    """Check that a file does not say that its vectors are quantised: their numbers are steps of ranges, or signs.

    A .npy file of 8 bits that says nothing is taken for one of codes.
    """
    metadata = read_metadata(file)
    table = map_npy(file) if metadata is None and file.suffix.lower() == ".npy" else None
    if table is not None and table.dtype in (np.int8, np.uint8):
        raise DataError(
            f"{file}: holds {table.dtype}, as codes of precision int8, uint8, binary or ubinary, and no "
            f"{sidecar_of(file).name} is beside it to say what they are; copy it too, embed again, or convert numbers "
            "that are coordinates with astype('float32')"
        )
    if metadata is not None and isinstance(metadata.precision, str) and metadata.precision != "float32":
        raise DataError(f"{file}: holds vectors of precision {metadata.precision}; wanted float32, so embed again")


def _read_npy(path: Path, column: str | None) -> Iterator[Rows]:
    if column is not None:
        raise UsageError(f"'{path}' has no column '{column}'; leave the column out")
    try:
        table = load_npy(path)
    except Exception as error:
        raise DataError(f"{path}: {_refusal(error)}") from None
    if not isinstance(table, np.ndarray):
        raise DataError(f"{path}: holds several arrays; wanted one, as numpy.save writes it")
    if table.ndim != 2 or table.dtype.kind not in "fiu":
        raise DataError(f"{path}: holds {table.dtype} {table.shape}; wanted numbers [n, d]")
    for start in range(0, len(table), _ROWS_PER_BLOCK):
        with np.errstate(over="ignore"):  # a value that is too large becomes infinite, and is refused
            rows = np.asarray(table[start : start + _ROWS_PER_BLOCK], np.float32)
        yield rows


def _read_parquet(path: Path, column: str | None) -> Iterator[Rows]:
    pyarrow, parquet = import_parquet()
    try:
        file = parquet.ParquetFile(path)
        chosen = choose_column(column, file.schema_arrow.names, str(path), USUAL_COLUMNS)
        start = 1
        for batch in file.iter_batches(batch_size=rows_at_once(file), columns=[chosen]):
            rows = range(start, start + len(batch))
            yield _of_lists(batch.column(0), f"{path}: column '{chosen}'", rows)
            start = rows.stop
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a parquet file ({error})") from None


def _of_lists(column: Any, place: str, rows: Sequence[int]) -> Rows:
    """Return the vectors of a column of lists; of one length, without nulls, as a view where they are float32."""
    pyarrow, _ = import_parquet()
    kinds, kind = pyarrow.types, column.type
    if kinds.is_fixed_size_list(kind) or kinds.is_list(kind) or kinds.is_large_list(kind):
        numbers, count = column.flatten(), len(column)
        numeric = kinds.is_floating(numbers.type) or kinds.is_integer(numbers.type)
        widths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
        if numeric and not column.null_count and not numbers.null_count and len(widths) == 1:
            with np.errstate(over="ignore"):
                return np.asarray(numbers.to_numpy(zero_copy_only=False), np.float32).reshape(count, int(widths[0]))
    values = column.to_pylist()
    for row, value in zip(rows, values, strict=True):
        if not isinstance(value, list):
            raise DataError(f"{place}: row {row} holds {type_of(value)}; wanted a list of numbers")
        for number in value:
            if not isinstance(number, Real | Decimal) or isinstance(number, bool):
                raise DataError(f"{place}: row {row} holds a list with {type_of(number)}; wanted numbers")
    return _as_rows(values, place, "row", rows)


def _read_jsonl(path: Path, column: str | None) -> Iterator[Rows]:
    chosen = column

    def read(row: int, lines: list[bytes]) -> list[Any] | None:
        nonlocal chosen
        text = line_text(lines[0], row)
        if not text.strip():
            return None
        value = parse_json(text)
        if row == 1 and is_header(value):
            return None
        if isinstance(value, dict):
            chosen = choose_column(chosen, list(value), f"{path}: line {row}", USUAL_COLUMNS)
            value = value[chosen]
        if not isinstance(value, list) or not set(map(type, value)) <= {int, float}:
            raise WrongRowError("holds something other than one list of numbers")
        return value

    with path.open("rb") as stream:
        rows = parse_records(records_of(stream, str(path), "jsonl"), str(path), read)
        while part := list(islice(rows, _ROWS_PER_BLOCK)):
            lines, vectors = zip(*part, strict=True)
            yield _as_rows(vectors, str(path), "line", lines)


def _as_rows(values: Sequence[list[Any]], place: str, word: str, rows: Sequence[int]) -> Rows:
    """Return vectors that are lists of numbers; `rows` are their numbers in a message, behind a word."""
    width = len(values[0])
    for row, value in zip(rows, values, strict=True):
        if len(value) != width:
            message = f"{word} {row} has {len(value)} numbers, but {word} {rows[0]} has {width}; wanted one length"
            raise DataError(f"{place}: {message}")
    try:
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(np.float32)
    except OverflowError as error:
        raise DataError(f"{place}: holds a number that is too large ({error})") from None


_READERS: dict[str, Callable[[Path, str | None], Iterator[Rows]]] = {
    ".npy": _read_npy,
    ".parquet": _read_parquet,
    ".jsonl": _read_jsonl,
}


def _refusal(error: Exception) -> str:
    """Return what is wrong with a .npy file; numpy's own words for objects tell how to run them."""
    text = one_line(error)
    if "pickle" in text or "Python objects" in text:
        return "not a .npy file with numbers: it holds Python objects, or no array; write it with numpy.save"
    return f"not a .npy file ({text})"
