"""Read the records of .txt, .jsonl, .csv and .tsv files: their lines, and the values that they hold."""

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal, TypeVar, cast, get_args

from whiten_runtime.errors import DataError

Kind = Literal["txt", "jsonl", "csv", "tsv", "parquet"]

T = TypeVar("T")

Record = tuple[int, list[bytes]]
"""Number of the line on which a record begins, from 1, and its lines."""

LONGEST = 64 << 20
"""Bytes of the longest record that is read: a file without ends of lines would be read into memory as a whole."""

SAMPLED = 1000
"""Leading records of a .jsonl file in which keys are looked for."""

_FORMATS: dict[str, dict[str, Any]] = {
    "csv": {"delimiter": ",", "quoting": csv.QUOTE_MINIMAL},
    "tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}

csv.field_size_limit(2**31 - 1)  # the most that csv accepts on every platform; its default is 131,072 characters


class WrongRowError(Exception):
    """Raised for a record that holds no text; the message says what it holds."""


def kind_of(name: str) -> tuple[Kind, bool] | None:
    """Return the kind of a file, and whether it is compressed; None for another kind."""
    parts = name.rpartition("/")[2].lower().split(".")
    compressed = parts[-1] == "gz"
    kind = parts[-2 if compressed and len(parts) > 2 else -1] if len(parts) > 1 else ""
    return (cast(Kind, kind), compressed) if kind in get_args(Kind) else None


@contextmanager
def content_of(raw: BinaryIO, name: str, compressed: bool) -> Iterator[BinaryIO]:
    """Open the content of an open file."""
    try:
        # GzipFile is a BinaryIO in all but name.
        yield gzip.GzipFile(fileobj=raw) if compressed else raw  # type: ignore[misc]
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{name}: not a complete gzip file ({error})") from None


def records_of(stream: BinaryIO, name: str, kind: Kind, row: int = 1, size: int | None = None) -> Iterator[Record]:
    """Yield the records of `size` bytes from the stream's place on, where line `row` begins; None for all bytes.

    Quoted fields of a .csv file may hold ends of lines.
    """
    lines = _lines_of(stream, name, row, size)
    for number, line in lines:
        record = [line]
        if kind == "csv" and b'"' in line:
            try:
                next(csv.reader(_extend(record, lines, name), strict=True))
            except csv.Error as error:  # nobody knows where the record ends
                raise DataError(f"{name}: line {number}: {error}; correct its quotes") from None
        yield number, record


def parse_records(
    records: Iterable[Record], name: str, read: Callable[[int, list[bytes]], T | None]
) -> Iterator[tuple[int, T]]:
    """Yield the line of each record and what `read` returns for it; skip blank records, for which it returns None."""
    for row, lines in records:
        try:
            value = read(row, lines)
        except WrongRowError as error:
            raise DataError(f"{name}: line {row} {error}; correct it") from None
        if value is not None:
            yield row, value


def line_too_long(name: str, row: int) -> DataError:
    """Return the error of a line that is too long to be read."""
    return DataError(f"{name}: line {row} is longer than {LONGEST >> 20} MiB; give one text a line, or shorten it")


def _lines_of(stream: BinaryIO, name: str, row: int, left: int | None) -> Iterator[tuple[int, bytes]]:
    while line := stream.readline(LONGEST + 1 if left is None else min(left, LONGEST + 1)):
        if len(line) > LONGEST:
            raise line_too_long(name, row)
        yield row, line
        row += 1
        if left is not None and not (left := left - len(line)):
            return


def _extend(record: list[bytes], lines: Iterator[tuple[int, bytes]], name: str) -> Iterator[str]:
    """Yield the first line of a record, then further ones as they are asked for, and append these to the record."""
    length = len(record[0])
    yield _latin(record[0])
    for row, line in lines:
        length += len(line)
        if length > LONGEST:
            raise DataError(f"{name}: line {row} is in a field of more than {LONGEST >> 20} MiB; close its quotes")
        record.append(line)
        yield _latin(line)


def _latin(line: bytes) -> str:
    """Return a line in which quotes and separators are where they are in its text, whatever its encoding."""
    return line.rstrip(b"\r\n").decode("latin-1") + "\n"


def line_text(line: bytes, row: int) -> str:
    """Return the text of a line without its end."""
    return _decode(line, row).rstrip("\r\n")


def _decode(line: bytes, row: int) -> str:
    """Return the text of a line with its end; the first line of a file may begin with a byte order mark."""
    if b"\0" in line:
        raise WrongRowError("holds a NUL byte; wanted UTF-8 text")
    try:
        return line.decode("utf-8-sig" if row == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise WrongRowError(f"is not UTF-8 (byte 0x{line[error.start]:02x})") from None


def fields_of(lines: Sequence[bytes], row: int, kind: Kind) -> list[str]:
    """Return the fields of a record of a .csv or .tsv file; none of a blank one."""
    texts = [_decode(line, number) for number, line in enumerate(lines, row)]
    try:
        return next(csv.reader(texts, strict=True, **_FORMATS[kind]), [])
    except csv.Error as error:
        raise WrongRowError(f"cannot be read ({error})") from None


def check_width(fields: Sequence[str], width: int) -> None:
    """Check that a record has as many fields as the header."""
    if len(fields) != width:
        raise WrongRowError(f"has {len(fields)} columns; wanted {width}")


def value_of(line: bytes, row: int) -> str | dict[str, Any] | None:
    """Return the string or object that a line of a .jsonl file holds; None for a blank one."""
    text = line_text(line, row)
    if not text.strip():
        return None
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise WrongRowError(f"is not JSON ({error})") from None
    if not isinstance(value, str | dict):
        raise WrongRowError(f"holds {type_of(value)}; wanted a string or an object")
    return value


def text_at(value: str | dict[str, Any], column: str) -> str:
    """Return the text of a string or object of a .jsonl file."""
    if isinstance(value, str):
        return value
    if column not in value:
        raise WrongRowError(f"has no key '{column}'")
    if not isinstance(value[column], str):
        raise WrongRowError(f"holds {type_of(value[column])} at '{column}'; wanted a string")
    return str(value[column])


def values_of(records: Iterable[Record]) -> list[str | dict[str, Any]]:
    """Return the strings and objects of records of a .jsonl file, without those that cannot be read."""
    values = []
    for row, lines in records:
        try:
            value = value_of(lines[0], row)
        except WrongRowError:
            continue
        if value is not None:
            values.append(value)
    return values


def keys_of(values: Iterable[str | dict[str, Any]]) -> list[str]:
    """Return all keys of the objects among some values."""
    return list(dict.fromkeys(key for value in values if isinstance(value, dict) for key in value))


def type_of(value: object) -> str:
    """Return the type of a value of JSON in words."""
    return {type(None): "null", dict: "an object", list: "a list", str: "a string", bool: "a truth value"}.get(
        type(value), f"the number {value!r:.30}"
    )
