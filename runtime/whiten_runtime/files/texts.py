"""Read texts from files: .txt, .jsonl, .csv, .tsv and .parquet, each also .gz."""

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from whiten_runtime.checks import from_clone
from whiten_runtime.errors import DataError, MissingPackageError, UsageError
from whiten_runtime.ort.process import allow_long_csv_fields

USUAL_COLUMNS = ("text", "sentence")
"""Columns that are taken when the caller names none."""

_LONGEST_LINE = 64 << 20
"""Bytes of the longest line that is read: a file without ends of lines would be read into memory as a whole."""

allow_long_csv_fields()


def read_texts(path: str | Path, column: str | None = None) -> Iterator[str]:
    """Yield the texts of a file in order, including empty ones.

    Each line of a .txt file is a text, and each line of a .jsonl file a string or an object. The other kinds have a
    header. Fields of a .csv file may be quoted; those of a .tsv file are taken as they are.
    """
    if str(path) == "-":
        if column is not None:
            raise UsageError(f"standard input is plain text and has no column '{column}'; leave the column out")
        if sys.stdin is None:
            raise UsageError("standard input is closed; name a file")
        yield from _lines(sys.stdin.buffer, "standard input")
        return
    file = Path(path)
    suffixes = [suffix.lower() for suffix in file.suffixes]
    compressed = suffixes[-1:] == [".gz"]
    kind = (suffixes[:-1] if compressed else suffixes)[-1:]
    read = _READERS.get(kind[0] if kind else "")
    if read is None:
        raise UsageError(f"'{file}': unknown kind of file; wanted {', '.join(_READERS)}, or one of them with .gz")
    if file.is_dir():
        raise UsageError(f"'{file}' is a directory; name a file")
    try:
        with file.open("rb") as raw:
            # GzipFile is a BinaryIO in all but name.
            stream: BinaryIO = gzip.GzipFile(fileobj=raw) if compressed else raw  # type: ignore[assignment]
            yield from read(stream, str(file), column)
    except FileNotFoundError:
        raise UsageError(f"'{file}' does not exist; check the path") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{file}: not a complete gzip file ({error})") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error


def _lines(stream: BinaryIO, name: str) -> Iterator[str]:
    for number, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE + 1), b""), 1):
        if len(line) > _LONGEST_LINE:
            raise DataError(
                f"{name}: line {number} is longer than {_LONGEST_LINE >> 20} MiB; give one text a line, or shorten it"
            )
        if b"\0" in line:
            raise DataError(f"{name}: line {number} holds a NUL byte, so this is not a text file; give UTF-8 text")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}: line {number} is not UTF-8 (byte 0x{line[error.start]:02x}); convert the file to UTF-8"
            ) from None
        yield text.rstrip("\r\n")


def _read_txt(stream: BinaryIO, name: str, column: str | None) -> Iterator[str]:
    if column is not None:
        raise UsageError(f"'{name}' is plain text and has no column '{column}'; leave the column out")
    return _lines(stream, name)


def _read_jsonl(stream: BinaryIO, name: str, column: str | None) -> Iterator[str]:
    key, lone = column, False
    for number, line in enumerate(_lines(stream, name), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"{name}: line {number} is not JSON ({error})") from None
        if isinstance(row, dict):
            if key is None and len(row) == 1:
                lone = not row.keys() & set(USUAL_COLUMNS)
            elif lone and len(row) > 1:  # the first line lacked keys, perhaps that of the text
                raise UsageError(
                    f"'{name}' has only '{key}' in its first line and {_quoted(list(row))} in line {number}; choose "
                    "one with --column"
                )
            key = choose_column(key, list(row), name)
            row = row[key]
        if not isinstance(row, str):
            raise DataError(f"{name}: line {number} holds a {type(row).__name__}; wanted a string")
        yield row


def _read_delimited(delimiter: str, quoting: Any) -> Callable[[BinaryIO, str, str | None], Iterator[str]]:
    def read(stream: BinaryIO, name: str, column: str | None) -> Iterator[str]:
        try:
            rows = csv.reader(
                (f"{line}\n" for line in _lines(stream, name)), delimiter=delimiter, quoting=quoting, strict=True
            )
            header = next(rows, None)
            if header is None:
                return
            index = header.index(choose_column(column, header, name))
            for row in rows:
                if not row:
                    continue
                if len(row) != len(header):
                    raise DataError(f"{name}: line {rows.line_num} has {len(row)} columns; wanted {len(header)}")
                yield row[index]
        except csv.Error as error:
            raise DataError(f"{name}: line {rows.line_num}: {error}") from None

    return read


def _read_parquet(stream: BinaryIO, name: str, column: str | None) -> Iterator[str]:
    pyarrow, parquet = import_parquet()
    try:
        source = io.BytesIO(stream.read()) if isinstance(stream, gzip.GzipFile) else stream
        file = parquet.ParquetFile(source)
        chosen = choose_column(column, file.schema_arrow.names, name)
        for batch in file.iter_batches(columns=[chosen]):
            for value in batch.column(0).to_pylist():
                if not isinstance(value, str):
                    raise DataError(f"{name}: column '{chosen}' holds a {type(value).__name__}; wanted strings")
                yield value
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
    if column is not None:
        if column in available:
            return column
        raise UsageError(f"'{name}' has no column '{column}', only {_quoted(available)}")
    if len(available) == 1:
        return available[0]
    for usual in usual_columns:
        if usual in available:
            return usual
    raise UsageError(f"'{name}' has the columns {_quoted(available)}; choose one with --column")


def _quoted(names: list[str]) -> str:
    shown = [f"'{name[:40]}'" for name in names[:12]]
    return ", ".join(shown) + (", ..." if len(names) > 12 else "")


_READERS: dict[str, Callable[[BinaryIO, str, str | None], Iterator[str]]] = {
    ".txt": _read_txt,
    ".jsonl": _read_jsonl,
    ".csv": _read_delimited(",", csv.QUOTE_MINIMAL),
    ".tsv": _read_delimited("\t", csv.QUOTE_NONE),
    ".parquet": _read_parquet,
}
