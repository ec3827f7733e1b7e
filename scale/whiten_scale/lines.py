"""Read records of .txt, .jsonl, .csv and .tsv files: where files can be cut, and the rows of a piece."""

import csv
import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, BinaryIO

from whiten_runtime.checks import encodable
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.texts import choose_column, import_parquet
from whiten_runtime.ort.process import allow_long_csv_fields
from whiten_scale.inputs import AT_ONCE, Chunk, ColumnChoice, Described, InputFile, Piece, WrongRow, WrongRowError
from whiten_scale.places import opened

LONGEST = 64 << 20
"""Bytes of the longest record that is read, as in `whiten embed`."""

_LOOKED_AT = 1000
"""Records of a .jsonl file in which a value is looked for that tells the type of a column."""

_TEXT = "text"
"""Name of the only column of files whose lines are texts."""

_FORMATS: dict[str, dict[str, Any]] = {
    "csv": {"delimiter": ",", "quoting": csv.QUOTE_MINIMAL},
    "tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}

Record = tuple[int, list[bytes]]
"""Number of the line on which a record begins, and its lines."""

Read = Callable[[int, list[bytes]], tuple[Any, ...] | None]
"""Function that returns the text of a record and the values that are carried; None for a blank record."""

allow_long_csv_fields()


@contextmanager
def content_of(url: str, compressed: bool) -> Iterator[BinaryIO]:
    """Open the content of a file of lines."""
    with opened(url) as raw:
        try:
            # GzipFile is a BinaryIO in all but name.
            yield gzip.GzipFile(fileobj=raw) if compressed else raw  # type: ignore[misc]
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{url}: not a complete gzip file ({error})") from None


def describe(stream: BinaryIO, name: str, kind: str, choice: ColumnChoice) -> Described:
    """Return what the beginning of a file says."""
    pyarrow, _ = import_parquet()
    strings = pyarrow.schema([(one, pyarrow.string()) for one in choice.carried])
    if kind == "txt":
        _check_only_lines(choice, name)
        return Described(None, None, strings)
    if kind == "jsonl":
        return _describe_objects(stream, name, choice)
    first = next(records_of(stream, name, kind), None)
    if first is None:
        return Described((), None, strings)
    try:
        header = _fields(first[1], 1, kind)
    except WrongRowError as error:
        raise DataError(f"{name}: its header {error}; correct it") from None
    column, *_ = [choose_column(one, header, name) for one in (choice.column, *choice.carried)]
    return Described(tuple(header), column, strings, sum(map(len, first[1])), 1 + len(first[1]))


def cut(records: Iterable[Record], start: int, size: int | None) -> tuple[list[Piece], str]:
    """Return pieces of `size` records each, None for one piece, and the SHA-256 of all records."""
    pieces, digest, position, begin, first, count = list[Piece](), hashlib.sha256(), start, start, 0, 0
    for row, lines in records:
        first = first or row
        for line in lines:
            digest.update(line)
            position += len(line)
        count += 1
        if count == size:
            pieces.append(Piece(0, begin, position, first, count))
            begin, first, count = position, 0, 0
    if count:
        pieces.append(Piece(0, begin, position, first, count))
    return pieces, digest.hexdigest()


def records_of(stream: BinaryIO, name: str, kind: str, row: int = 1, size: int | None = None) -> Iterator[Record]:
    """Yield the records of `size` bytes from the stream's place on, where line `row` begins; None for all bytes.

    Quoted fields of a .csv file may hold ends of lines.
    """
    lines = _lines_of(stream, name, row, size)
    for number, line in lines:
        taken = [line]
        if kind == "csv" and b'"' in line:
            try:
                next(csv.reader(_fed(taken, lines, name), strict=True))
            except csv.Error as error:  # nobody knows where the record ends
                raise DataError(f"{name}: row {number}: {error}; correct its quotes") from None
        yield number, taken


def _lines_of(stream: BinaryIO, name: str, row: int, left: int | None) -> Iterator[tuple[int, bytes]]:
    while line := stream.readline(LONGEST + 1 if left is None else min(left, LONGEST + 1)):
        if len(line) > LONGEST:
            raise DataError(
                f"{name}: row {row} is longer than {LONGEST >> 20} MiB; give one text a line, or shorten it"
            )
        yield row, line
        row += 1
        if left is not None and not (left := left - len(line)):
            return


def _fed(taken: list[bytes], lines: Iterator[tuple[int, bytes]], name: str) -> Iterator[str]:
    """Yield the first line, then further ones as they are asked for, which are added to `taken`."""
    length = len(taken[0])
    yield _plain(taken[0])
    for row, line in lines:
        length += len(line)
        if length > LONGEST:
            raise DataError(f"{name}: row {row} is in a field of more than {LONGEST >> 20} MiB; close its quotes")
        taken.append(line)
        yield _plain(line)


def _plain(line: bytes) -> str:
    """Return a line in which quotes and separators are where they are in its text, whatever its encoding."""
    return line.rstrip(b"\r\n").decode("latin-1") + "\n"


def chunks(file: InputFile, piece: Piece, schema: Any) -> Iterator[Chunk]:
    """Yield the records of a piece, with the schema of `chunk_schema`."""
    read = _reader(file, list(schema)[3:])
    with content_of(file.url, file.compressed) as stream:
        stream.seek(piece.start)
        records = records_of(stream, file.name, file.kind, piece.row, piece.end - piece.start)
        while part := list(islice(records, AT_ONCE)):
            yield _chunk(file.name, part, read, schema)


def _chunk(name: str, records: Sequence[Record], read: Read, schema: Any) -> Chunk:
    pyarrow, _ = import_parquet()
    rows, wrong = list[tuple[Any, ...]](), list[WrongRow]()
    for row, lines in records:
        try:
            found = read(row, lines)
        except WrongRowError as error:
            wrong.append(WrongRow(name, row, str(error)))
            continue
        if found is not None:
            rows.append((encodable(found[0]), name, row, *found[1:]))
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pyarrow.array(column, one.type) for column, one in zip(columns, schema, strict=True)]
    return Chunk(pyarrow.Table.from_arrays(arrays, schema=schema), len(records), wrong)


def _reader(file: InputFile, carried: Sequence[Any]) -> Read:
    """Return the function that reads a record."""
    if file.kind == "txt":
        return lambda row, lines: (_decoded(lines[0], row),) * (1 + len(carried))
    if file.kind == "jsonl":
        return lambda row, lines: _of_json(_decoded(lines[0], row), file.column or _TEXT, carried)
    assert file.columns is not None
    columns = file.columns
    places = [0 if one is None else columns.index(one) for one in (file.column, *(field.name for field in carried))]

    def read(row: int, lines: list[bytes]) -> tuple[Any, ...] | None:
        values = _fields(lines, row, file.kind)
        if values and len(values) != len(columns):
            raise WrongRowError(f"has {len(values)} columns; wanted {len(columns)}")
        return tuple(values[place] for place in places) if values else None

    return read


def _decoded(line: bytes, row: int) -> str:
    """Return the text of a line without its end; the first line of a file may begin with a byte order mark."""
    if b"\0" in line:
        raise WrongRowError("holds a NUL byte; wanted UTF-8 text")
    try:
        return line.decode("utf-8-sig" if row == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise WrongRowError(f"is not UTF-8 (byte 0x{line[error.start]:02x})") from None


def _fields(lines: Sequence[bytes], row: int, kind: str) -> list[str]:
    texts = [f"{_decoded(line, number)}\n" for number, line in enumerate(lines, row)]
    try:
        return next(csv.reader(texts, strict=True, **_FORMATS[kind]), [])
    except csv.Error as error:
        raise WrongRowError(f"cannot be read ({error})") from None


def _of_json(line: str, column: str, carried: Sequence[Any]) -> tuple[Any, ...] | None:
    if not line.strip():
        return None
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise WrongRowError(f"is not JSON ({error})") from None
    row, column = ({_TEXT: value}, _TEXT) if isinstance(value, str) else (value, column)
    if not isinstance(row, dict):
        raise WrongRowError(f"holds {_type(value)}; wanted a string or an object")
    if column not in row:
        raise WrongRowError(f"has no key '{column}'")
    if not isinstance(row[column], str):
        raise WrongRowError(f"holds {_type(row[column])} at '{column}'; wanted a string")
    return row[column], *(_carried(row, one) for one in carried)


def _carried(row: dict[str, Any], field: Any) -> Any:
    value = row.get(field.name)
    if value is None:
        if field.nullable:
            return None
        raise WrongRowError(f"has no id at '{field.name}'")
    exact = type(value) is int and str(field.type) == "double" and abs(value) <= 1 << 53
    if _arrow_type(value) != str(field.type) and not exact:
        raise WrongRowError(f"holds {_type(value)} at '{field.name}'; wanted {field.type}, as in the first row")
    return encodable(value) if isinstance(value, str) else value


def _arrow_type(value: object) -> str | None:
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        return None
    return {int: "int64", str: "string", float: "double", bool: "bool"}.get(type(value))


def _type(value: object) -> str:
    return {type(None): "null", dict: "an object", list: "a list", str: "a string", bool: "a truth value"}.get(
        type(value), f"the number {value!r:.30}"
    )


def _check_only_lines(choice: ColumnChoice, name: str) -> None:
    for one in (choice.column, *choice.carried):
        if one not in (None, _TEXT):
            raise UsageError(f"'{name}' has lines of plain text and no column '{one}', only '{_TEXT}'")


def _describe_objects(stream: BinaryIO, name: str, choice: ColumnChoice) -> Described:
    """Take columns and types from the first objects of a .jsonl file; a row that lacks a column is a wrong row."""
    pyarrow, _ = import_parquet()
    rows = [row for record in islice(records_of(stream, name, "jsonl"), _LOOKED_AT) if (row := _value(record))]
    stream.seek(0)
    objects = [row for row in rows if isinstance(row, dict)]
    if rows and not objects:
        _check_only_lines(choice, name)
    keys = list(dict.fromkeys(encodable(key) for row in objects for key in row))
    column = choose_column(choice.column, keys, name) if keys else choice.column
    fields = []
    for one in choice.carried:
        value = next((row[one] for row in objects if row.get(one) is not None), None)
        if keys and value is None:
            choose_column(one, sorted(keys), name)
        kind = "string" if value is None else _arrow_type(value)
        if kind is None:
            raise UsageError(f"'{name}' holds {_type(value)} at '{one}'; only texts and numbers can be carried")
        fields.append(pyarrow.field(one, pyarrow.type_for_alias(kind)))
    return Described(None, column, pyarrow.schema(fields))


def _value(record: Record) -> str | dict[str, Any] | None:
    """Return what a line of JSON holds; None for one that is blank or wrong."""
    try:
        value = json.loads(_decoded(record[1][0], record[0]))
    except (WrongRowError, ValueError, RecursionError):
        return None
    return value if isinstance(value, str | dict) else None
