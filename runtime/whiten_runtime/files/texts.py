"""Read texts from files: .txt, .jsonl, .csv, .tsv and .parquet, each also .gz."""

import gzip
import io
import sys
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, get_args

from whiten_runtime.errors import DataError, MissingPackageError, UsageError, from_clone
from whiten_runtime.files.records import (
    LOOKED_AT,
    Kind,
    check_width,
    content_of,
    decoded,
    each,
    fields_of,
    keys_of,
    kind_of,
    records_of,
    text_at,
    value_of,
    values_of,
)

USUAL_COLUMNS = ("text", "sentence")
"""Columns that are taken when the caller names none."""


def read_texts(path: str | Path, column: str | None = None) -> Iterator[str]:
    """Yield the texts of a file in order, including empty ones; see `read_rows`."""
    return (text for _, text in read_rows(path, column))


def place_of(path: str | Path, column: str | None, index: int) -> str:
    """Return the file and line, or row of a Parquet file, of a text that `read_texts` yields as number `index`."""
    if str(path) == "-":
        return f"standard input: line {index + 1}"
    if Path(path).is_file():  # another kind of file cannot be read twice
        for row, _ in islice(read_rows(path, column), index, None):
            return place_name(path, row)
    return f"{path}: text {index + 1}"


def place_name(path: str | Path, row: int) -> str:
    """Return the name of a line of a file, or of a row of a Parquet file."""
    return f"{path}: {'row' if '.parquet' in Path(path).suffixes else 'line'} {row}"


def read_rows(path: str | Path, column: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield the line, or row of a Parquet file, of each text of a file, and the text.

    Each line of a .txt file is a text, and each line of a .jsonl file a string or an object. The other kinds have a
    header. Fields of a .csv file may be quoted; those of a .tsv file are taken as they are.
    """
    if str(path) == "-":
        if column is not None:
            raise UsageError(f"standard input is plain text and has no column '{column}'; leave the column out")
        if sys.stdin is None:
            raise UsageError("standard input is closed; name a file")
        yield from _read_txt(sys.stdin.buffer, "standard input", "txt", None)
        return
    file = Path(path)
    found = kind_of(file.name)
    if found is None:
        kinds = ", ".join(f".{kind}" for kind in get_args(Kind))
        raise UsageError(f"'{file}': unknown kind of file; wanted {kinds}, or one of them with .gz")
    kind, compressed = found
    if file.is_dir():
        raise UsageError(f"'{file}' is a directory; name a file")
    try:
        with file.open("rb") as raw, content_of(raw, str(file), compressed) as stream:
            yield from _READERS[kind](stream, str(file), kind, column)
    except FileNotFoundError:
        raise UsageError(f"'{file}' does not exist; check the path") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error


def _read_txt(stream: BinaryIO, name: str, kind: Kind, column: str | None) -> Iterator[tuple[int, str]]:
    if column not in (None, USUAL_COLUMNS[0]):
        raise UsageError(f"'{name}' is plain text and has no column '{column}'; leave the column out")
    return each(records_of(stream, name, kind), name, lambda row, lines: decoded(lines[0], row))


def _read_jsonl(stream: BinaryIO, name: str, kind: Kind, column: str | None) -> Iterator[tuple[int, str]]:
    records = records_of(stream, name, kind)
    first = list(islice(records, LOOKED_AT))
    values = values_of(first)
    keys = keys_of(values)
    if values and not keys and column not in (None, USUAL_COLUMNS[0]):
        raise UsageError(f"'{name}' has strings on its lines and no column '{column}'; leave the column out")
    chosen = choose_column(column, keys, name) if keys else column or USUAL_COLUMNS[0]

    def read(row: int, lines: list[bytes]) -> str | None:
        value = value_of(lines[0], row)
        return None if value is None else text_at(value, chosen)

    return each(chain(first, records), name, read)


def _read_delimited(stream: BinaryIO, name: str, kind: Kind, column: str | None) -> Iterator[tuple[int, str]]:
    records = records_of(stream, name, kind)
    first = next(records, None)
    if first is None:
        return
    ((_, header),) = each([first], name, lambda row, lines: fields_of(lines, row, kind))
    index = header.index(choose_column(column, header, name))

    def read(row: int, lines: list[bytes]) -> str | None:
        fields = fields_of(lines, row, kind)
        if fields:
            check_width(fields, len(header))
        return fields[index] if fields else None

    yield from each(records, name, read)


def _read_parquet(stream: BinaryIO, name: str, kind: Kind, column: str | None) -> Iterator[tuple[int, str]]:
    pyarrow, parquet = import_parquet()
    try:
        source = io.BytesIO(stream.read()) if isinstance(stream, gzip.GzipFile) else stream
        file = parquet.ParquetFile(source)
        chosen = choose_column(column, file.schema_arrow.names, name)
        values = chain.from_iterable(batch.column(0).to_pylist() for batch in file.iter_batches(columns=[chosen]))
        for row, value in enumerate(values, 1):
            if not isinstance(value, str):
                raise DataError(f"{name}: column '{chosen}' holds a {type(value).__name__}; wanted strings")
            yield row, value
    except pyarrow.ArrowException as error:
        raise DataError(f"{name}: not a parquet file ({error})") from None


def import_parquet() -> tuple[Any, Any]:
    """Import pyarrow and pyarrow.parquet."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingPackageError(f"parquet files need pyarrow; install it {from_clone('parquet')}") from None
    return pyarrow, pyarrow.parquet


def choose_column(
    column: str | None, available: list[str], name: str, usual_columns: tuple[str, ...] = USUAL_COLUMNS
) -> str:
    """Return the column that is asked for, else the only one, else a usual one."""
    if column is not None and column not in available:
        raise UsageError(f"'{name}' has no column '{column}', only {_quoted(available)}")
    if column is None and len(available) == 1 and {";", "\t"} & set(available[0]):
        raise UsageError(
            f"'{name}' has one column, {_quoted(available)}; columns of .csv files end at commas, of .tsv files at "
            "tabs: convert it, or name the column with --column"
        )
    chosen = available[0] if len(available) == 1 else column
    if chosen is None:
        chosen = next((usual for usual in usual_columns if usual in available), None)
    if chosen is None:
        raise UsageError(f"'{name}' has the columns {_quoted(available)}; choose one with --column")
    if available.count(chosen) > 1:
        raise UsageError(f"'{name}' has the column '{chosen}' twice; rename one of them")
    return chosen


def _quoted(names: list[str]) -> str:
    shown = [f"'{name[:40]}'" for name in names[:12]]
    return ", ".join(shown) + (", ..." if len(names) > 12 else "")


_READERS: dict[Kind, Callable[[BinaryIO, str, Kind, str | None], Iterator[tuple[int, str]]]] = {
    "txt": _read_txt,
    "jsonl": _read_jsonl,
    "csv": _read_delimited,
    "tsv": _read_delimited,
    "parquet": _read_parquet,
}
