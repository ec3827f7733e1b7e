"""Read rows of .txt, .jsonl, .csv and .tsv files: their texts, and the columns that are carried."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO

from whiten_runtime.checks import encodable
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.texts import choose_column, import_parquet
from whiten_scale.inputs.lines import (
    Record,
    cut_lines,
    cut_records,
    decoded,
    lines_of,
    quoted_records,
    records_of,
    single_lines,
)
from whiten_scale.inputs.pieces import LINE_COLUMN, ColumnChoice, Described, InputFile, Piece
from whiten_scale.records import Chunk, WrongRow, WrongRowError

AT_ONCE = 4096
"""Records of a chunk."""

_LOOKED_AT = 1000
"""Records of a .jsonl file in which a value is looked for that tells the type of a column."""

_LARGEST = 1 << 63
_EXACT = 1 << 53
"""Largest whole number that float64 holds exactly, as do all below it."""

Values = dict[str, Any]


def describe(stream: BinaryIO, name: str, kind: str, choice: ColumnChoice) -> Described:
    """Return what the beginning of a file says. The stream is left where the first record begins.

    Raises:
        UsageError: a column does not exist, or cannot be carried.
        DataError: the header cannot be read.
    """
    pyarrow, _ = import_parquet()
    if kind == "txt":
        chosen = _only_lines(choice, name)
        return Described(None, None, pyarrow.schema([(one, pyarrow.string()) for one in chosen]))
    if kind == "jsonl":
        return _describe_objects(stream, name, choice)
    first = next(split_of(kind)(lines_of(stream, name, 1), name), None)
    if first is None:
        return Described((), None, pyarrow.schema([(one, pyarrow.string()) for one in choice.carried]))
    header = _header(first, name, kind)
    column = choose_column(choice.column, header, name)
    for one in choice.carried:
        choose_column(one, header, name)
    schema = pyarrow.schema([(one, pyarrow.string()) for one in choice.carried])
    return Described(tuple(header), column, schema, sum(map(len, first[1])), 1 + len(first[1]))


def cut(stream: BinaryIO, name: str, kind: str, described: Described, size: int | None) -> Iterator[Piece]:
    """Yield the pieces of a file whose stream is where its first record begins.

    Raises:
        DataError: nobody knows where records end.
    """
    if kind == "csv":
        records = quoted_records(lines_of(stream, name, described.row), name)
        return cut_records(records, described.start, size)
    return cut_lines(stream, described.start, described.row, size)


def chunks(file: InputFile, piece: Piece, carried: Any) -> Iterator[Chunk]:
    """Yield the records of a piece.

    Args:
        file: the file.
        piece: the piece.
        carried: schema of pyarrow of the columns that are carried.

    Raises:
        UsageError: the file is gone.
        DataError: it cannot be read, or was changed.
    """
    read = _reader(file, carried)
    records = records_of(file, piece, split_of(file.kind))
    while part := list(islice(records, AT_ONCE)):
        yield _chunk(file.name, part, read, carried)


def split_of(kind: str) -> Callable[[Any, str], Iterator[Record]]:
    """Return the function that makes records of lines."""
    return quoted_records if kind == "csv" else single_lines


def _chunk(name: str, records: Sequence[Record], read: "_Read", carried: Any) -> Chunk:
    pyarrow, _ = import_parquet()
    texts, rows, wrong = [], [], []
    columns: dict[str, list[Any]] = {one: [] for one in carried.names}
    for row, lines in records:
        try:
            found = read(row, lines)
        except WrongRowError as error:
            wrong.append(WrongRow(name, row, str(error)))
            continue
        if found is None:
            continue
        text, values = found
        texts.append(text)
        rows.append(row)
        for one, value in values.items():
            columns[one].append(value)
    arrays = [pyarrow.array(columns[one], carried.field(one).type) for one in carried.names]
    return Chunk(name, texts, rows, pyarrow.table(arrays, schema=carried), len(records), wrong)


_Read = Callable[[int, list[bytes]], tuple[str, Values] | None]


def _reader(file: InputFile, carried: Any) -> _Read:
    """Return the function that reads a record; it returns None for a blank one."""
    names = tuple(carried.names)
    if file.kind == "txt":
        return lambda row, lines: _of_line(decoded(lines[0], row == 1), names)
    if file.kind == "jsonl":
        return lambda row, lines: _of_json(decoded(lines[0], row == 1), file, carried)
    assert file.columns is not None
    columns, column, delimited = file.columns, file.column, _FORMATS[file.kind]
    places = {one: columns.index(one) for one in names}
    place = columns.index(column) if column is not None else 0

    def read(row: int, lines: list[bytes]) -> tuple[str, Values] | None:
        values = _fields([decoded(line, row + index == 1) for index, line in enumerate(lines)], delimited)
        if not values:
            return None
        if len(values) != len(columns):
            raise WrongRowError(f"has {len(values)} columns; wanted {len(columns)}")
        return values[place], {one: values[index] for one, index in places.items()}

    return read


_FORMATS: dict[str, dict[str, Any]] = {
    "csv": {"delimiter": ",", "quoting": csv.QUOTE_MINIMAL},
    "tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}


def _fields(lines: Sequence[str], delimited: dict[str, Any]) -> list[str]:
    try:
        return next(csv.reader((f"{line}\n" for line in lines), strict=True, **delimited), [])
    except csv.Error as error:
        raise WrongRowError(f"cannot be read ({error})") from None


def _header(record: Record, name: str, kind: str) -> list[str]:
    try:
        return _fields([decoded(line, not index) for index, line in enumerate(record[1])], _FORMATS[kind])
    except WrongRowError as error:
        raise DataError(f"{name}: its header {error}; correct it") from None


def _of_line(text: str, names: tuple[str, ...]) -> tuple[str, Values]:
    return text, dict.fromkeys(names, text)


def _of_json(line: str, file: InputFile, carried: Any) -> tuple[str, Values] | None:
    if not line.strip():
        return None
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise WrongRowError(f"is not JSON ({error})") from None
    row = {LINE_COLUMN: value} if isinstance(value, str) else value
    if not isinstance(row, dict):
        raise WrongRowError(f"holds {_type(value)}; wanted a string or an object")
    column = LINE_COLUMN if isinstance(value, str) else file.column or LINE_COLUMN
    if column not in row:
        raise WrongRowError(f"has no key '{column}'")
    text = row[column]
    if not isinstance(text, str):
        raise WrongRowError(f"holds {_type(text)} at '{column}'; wanted a string")
    return text, {field.name: _carried(row, field) for field in carried}


def _carried(row: Values, field: Any) -> Any:
    value = row.get(field.name)
    if value is None:
        if field.nullable:
            return None
        raise WrongRowError(f"has no id at '{field.name}'")
    exact = type(value) is int and str(field.type) == "double" and abs(value) <= _EXACT
    if _arrow_type(value) != str(field.type) and not exact:
        raise WrongRowError(f"holds {_type(value)} at '{field.name}'; wanted {field.type}, as in the first row")
    return encodable(value) if isinstance(value, str) else value


def _arrow_type(value: object) -> str | None:
    if type(value) is int:
        return "int64" if -_LARGEST <= value < _LARGEST else None
    return {str: "string", float: "double", bool: "bool"}.get(type(value))


def _type(value: object) -> str:
    return {type(None): "null", dict: "an object", list: "a list", str: "a string", bool: "a truth value"}.get(
        type(value), f"the number {value!r:.30}"
    )


def _only_lines(choice: ColumnChoice, name: str) -> tuple[str, ...]:
    for one in (choice.column, *choice.carried):
        if one not in (None, LINE_COLUMN):
            raise UsageError(f"'{name}' has lines of plain text and no column '{one}', only '{LINE_COLUMN}'")
    return choice.carried


def _describe_objects(stream: BinaryIO, name: str, choice: ColumnChoice) -> Described:
    """Take columns and types from the first objects of a .jsonl file; a row that lacks a column is a wrong row."""
    pyarrow, _ = import_parquet()
    rows = list(_objects(stream, name))
    stream.seek(0)
    if rows and not any(isinstance(row, dict) for row in rows):
        carried = _only_lines(choice, name)
        return Described(None, None, pyarrow.schema([(one, pyarrow.string()) for one in carried]))
    objects = [row for row in rows if isinstance(row, dict)]
    keys = list(dict.fromkeys(key for row in objects for key in row))
    if strange := next((key for key in keys if encodable(key) != key), None):
        raise UsageError(f"'{name}' has the key {strange!r}, which UTF-8 cannot hold; rename it")
    column = choose_column(choice.column, keys, name) if keys else choice.column
    fields = []
    for one in choice.carried:
        value = next((row[one] for row in objects if row.get(one) is not None), None)
        if keys and value is None:
            choose_column(one, sorted({key for row in objects for key in row}), name)
        found = "string" if value is None else _arrow_type(value)
        if found is None:
            raise UsageError(f"'{name}' holds {_type(value)} at '{one}'; only texts and numbers can be carried")
        kind = {"string": pyarrow.string(), "int64": pyarrow.int64(), "double": pyarrow.float64()}
        fields.append(pyarrow.field(one, kind.get(found, pyarrow.bool_())))
    return Described(None, column, pyarrow.schema(fields))


def _objects(stream: BinaryIO, name: str) -> Iterator[Any]:
    """Yield what the first lines hold, those left out that hold no JSON: they are wrong rows."""
    for row, line in islice(lines_of(stream, name, 1), _LOOKED_AT):
        try:
            text = decoded(line, row == 1)
            value = json.loads(text) if text.strip() else None
        except (WrongRowError, ValueError, RecursionError):
            continue
        if isinstance(value, str | dict):
            yield value
