"""Read the records of .txt, .jsonl, .csv and .tsv files: their lines, and the values that they hold."""

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Literal, TypeVar, cast, get_args

from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.compressed import Compression
from whiten_runtime.ort.process import long_fields

Kind = Literal["txt", "jsonl", "csv", "tsv", "parquet"]

_OTHER_NAMES: dict[str, Kind] = {"ndjson": "jsonl"}
"""Other endings of names, and the kinds that they mean."""

T = TypeVar("T")

Record = tuple[int, list[bytes]]
"""Number of the line on which a record begins, from 1, and its lines."""

USUAL_COLUMNS = ("text", "sentence")
"""Columns that are taken when the caller names none."""

LONGEST = 64 << 20
"""Bytes of the longest record that is read: a file without ends of lines would be read into memory as a whole."""

_LINE_BYTES = 48
"""Memory of a line of a field besides its bytes."""

_PART = 1 << 20
"""Bytes that are read at once at most: a file may have no other ends of lines than CR."""

SAMPLED = 1000
"""Leading records of a .jsonl file in which keys are looked for."""

_NUMBER = re.compile(r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")

_FORMATS: dict[str, dict[str, Any]] = {
    "csv": {"delimiter": ",", "quoting": csv.QUOTE_MINIMAL},
    "tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}


class WrongRowError(Exception):
    """Raised for a record that holds no text; the message says what it holds."""


def kind_of(name: str) -> tuple[Kind, Compression | None] | None:
    """Return the kind of a file, and how it is compressed; None for another kind."""
    parts = name.rpartition("/")[2].lower().split(".")
    compression = parts.pop() if len(parts) > 2 and parts[-1] in get_args(Compression) else None
    kind = _OTHER_NAMES.get(parts[-1], parts[-1]) if len(parts) > 1 else ""
    return (cast(Kind, kind), cast(Compression | None, compression)) if kind in get_args(Kind) else None


def endings() -> str:
    kinds, others = (", ".join(f".{name}" for name in get_args(names)) for names in (Kind, Compression))
    return f"{kinds}, or one of them with {others}"


def records_of(stream: BinaryIO, name: str, kind: Kind, row: int = 1, size: int | None = None) -> Iterator[Record]:
    """Yield the records of `size` bytes from the stream's place on, where line `row` begins; None for all bytes.

    Quoted fields of a .csv file may hold ends of lines.
    """
    lines = _lines_of(stream, name, row, size)
    for number, line in lines:
        record = [line]
        if kind == "csv" and b'"' in line:
            try:
                with long_fields:
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
    return DataError(f"{name}: line {row} is longer than {LONGEST >> 20} MiB; give one text a line, or shorten it")


def _lines_of(stream: BinaryIO, name: str, row: int, left: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their ends, which are LF, CR LF or CR, as for Python's `open`; no other character ends one."""
    rest = b""
    while part := stream.readline(_PART if left is None else min(left, _PART)):
        left = None if left is None else left - len(part)
        lines = (rest + part).splitlines(keepends=True) if rest or b"\r" in part else [part]
        rest = b"" if lines[-1].endswith(b"\n") else lines.pop()
        for line in lines:
            if len(line) > LONGEST:
                raise line_too_long(name, row)
            yield row, line
            row += 1
        if len(rest) > LONGEST:
            raise line_too_long(name, row)
    if rest:
        yield row, rest


def _extend(record: list[bytes], lines: Iterator[tuple[int, bytes]], name: str) -> Iterator[str]:
    """Yield the first line of a record, then further ones as they are asked for, and append these to the record."""
    length = len(record[0])
    yield _latin(record[0])
    for row, line in lines:
        length += len(line) + _LINE_BYTES
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
        raise WrongRowError("holds a NUL byte, as UTF-16 does; wanted UTF-8")
    try:
        return line.decode("utf-8-sig" if row == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise WrongRowError(f"is not UTF-8 (byte 0x{line[error.start]:02x})") from None


def fields_of(lines: Sequence[bytes], row: int, kind: Kind) -> list[str]:
    """Return the fields of a record of a .csv or .tsv file; none of a blank one."""
    texts = [_decode(line, number) for number, line in enumerate(lines, row)]
    try:
        with long_fields:
            return next(csv.reader(texts, strict=True, **_FORMATS[kind]), [])
    except csv.Error as error:
        raise WrongRowError(f"cannot be read ({error})") from None


def check_width(fields: Sequence[str], width: int) -> None:
    if len(fields) != width:
        raise WrongRowError(f"has {len(fields)} columns; wanted {width}")


def parse_table(
    stream: BinaryIO,
    name: str,
    kind: Kind,
    columns: Sequence[str],
    wanted: str,
    read: Callable[[list[str]], T | None],
) -> Iterator[tuple[int, T]]:
    """Yield the line of each record of a .csv or .tsv file, and what `read` returns for its fields in some columns.

    The first record is the header. It has each of these columns once; `wanted` tells what else to give.
    """
    records = records_of(stream, name, kind)
    _, header = next(parse_records(records, name, lambda row, lines: fields_of(lines, row, kind) or None), (0, []))
    if not set(columns) <= set(header):
        raise UsageError(f"'{name}' has {_quoted(header) or 'nothing'} as header; wanted {wanted}")
    places = [header.index(choose_column(column, header, name)) for column in columns]

    def read_fields(row: int, lines: list[bytes]) -> T | None:
        fields = fields_of(lines, row, kind)
        if not fields:
            return None
        check_width(fields, len(header))
        return read([fields[place] for place in places])

    yield from parse_records(records, name, read_fields)


def value_of(line: bytes, row: int) -> str | dict[str, Any] | None:
    """Return the string or object that a line of a .jsonl file holds; None for a blank one."""
    text = line_text(line, row)
    if not text.strip():
        return None
    value = parse_json(text)
    if not isinstance(value, str | dict):
        raise WrongRowError(f"holds {type_of(value)}; wanted a string or an object")
    return value


def parse_json(text: str) -> Any:
    """Return the value of a line of JSON; what an object has twice is a tuple in it."""
    try:
        return _JSON.decode(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        raise WrongRowError(f"is not JSON ({error})") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        values: dict[str, list[Any]] = {name: [] for name in fields}
        for name, value in pairs:
            values[name].append(value)
        fields = {name: own[0] if len(own) == 1 else tuple(own) for name, own in values.items()}
    return fields


_JSON = json.JSONDecoder(object_pairs_hook=_object)


def text_at(value: str | dict[str, Any], column: str) -> str:
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
    return list(dict.fromkeys(key for value in values if isinstance(value, dict) for key in value))


def type_of(value: object) -> str:
    words = {dict: "an object", list: "a list", tuple: "two values", str: "a string", bool: "a truth value"}
    return "null" if value is None else words.get(type(value), f"the number {value!r:.30}")


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


def number_of(value: object) -> float | None:
    """Return a number of JSON, or one in ASCII digits of a field; None for all else, such as True, 1_0 and 1e999."""
    digits = isinstance(value, str) and _NUMBER.fullmatch(value)
    if not digits and type(value) not in (int, float):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _quoted(names: list[str]) -> str:
    first = [f"'{name[:40]}'" for name in names[:12]]
    return ", ".join(first) + (", ..." if len(names) > 12 else "")
