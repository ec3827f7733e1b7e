"""Cut .txt, .jsonl, .csv and .tsv files into pieces of records, and read the rows of a piece."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO

from whiten_runtime.errors import DataError, UsageError, encodable
from whiten_runtime.files import records
from whiten_runtime.files.records import Kind, Record, WrongRowError, records_of, type_of
from whiten_runtime.files.texts import choose_column, import_parquet
from whiten_scale.inputs import AT_ONCE, Chunk, ColumnChoice, Described, InputFile, Piece, WrongRow
from whiten_scale.places import opened

_TEXT = "text"
"""Name of the only column of files whose lines are texts."""

Read = Callable[[int, list[bytes]], tuple[Any, ...] | None]
"""Function that returns the text of a record and the values that are carried; None for a blank record."""


def describe(stream: BinaryIO, name: str, kind: Kind, choice: ColumnChoice) -> Described:
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
        header = records.fields_of(first[1], 1, kind)
    except WrongRowError as error:
        raise DataError(f"{name}: its header {error}; correct it") from None
    column, *_ = [choose_column(one, header, name) for one in (choice.column, *choice.carried)]
    return Described(tuple(header), column, strings, sum(map(len, first[1])), 1 + len(first[1]))


def cut(found: Iterable[Record], start: int, size: int | None) -> tuple[list[Piece], str]:
    """Return pieces of `size` records each, None for one piece, and the SHA-256 of all records."""
    pieces, digest, position, begin, first, count = list[Piece](), hashlib.sha256(), start, start, 0, 0
    for row, lines in found:
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


def chunks(file: InputFile, piece: Piece, schema: Any) -> Iterator[Chunk]:
    """Yield the records of a piece, with the schema of `chunk_schema`."""
    read = _reader(file, list(schema)[3:])
    with opened(file.url) as raw, records.content_of(raw, file.url, file.compressed) as stream:
        stream.seek(piece.start)
        found = records_of(stream, file.name, file.kind, piece.row, piece.end - piece.start)
        while part := list(islice(found, AT_ONCE)):
            yield _chunk(file.name, part, read, schema)


def _chunk(name: str, part: Sequence[Record], read: Read, schema: Any) -> Chunk:
    pyarrow, _ = import_parquet()
    rows, wrong = list[tuple[Any, ...]](), list[WrongRow]()
    for row, lines in part:
        try:
            found = read(row, lines)
        except WrongRowError as error:
            wrong.append(WrongRow(name, row, str(error)))
            continue
        if found is not None:
            rows.append((encodable(found[0]), name, row, *found[1:]))
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pyarrow.array(column, one.type) for column, one in zip(columns, schema, strict=True)]
    return Chunk(pyarrow.Table.from_arrays(arrays, schema=schema), len(part), wrong)


def _reader(file: InputFile, carried: Sequence[Any]) -> Read:
    """Return the function that reads a record."""
    if file.kind == "txt":
        return lambda row, lines: (records.decoded(lines[0], row),) * (1 + len(carried))
    if file.kind == "jsonl":
        return lambda row, lines: _of_json(records.value_of(lines[0], row), file.column or _TEXT, carried)
    assert file.columns is not None
    columns = file.columns
    places = [0 if one is None else columns.index(one) for one in (file.column, *(field.name for field in carried))]

    def read(row: int, lines: list[bytes]) -> tuple[Any, ...] | None:
        fields = records.fields_of(lines, row, file.kind)
        if fields:
            records.check_width(fields, len(columns))
        return tuple(fields[place] for place in places) if fields else None

    return read


def _of_json(value: str | dict[str, Any] | None, column: str, carried: Sequence[Any]) -> tuple[Any, ...] | None:
    if value is None:
        return None
    row = {_TEXT: value} if isinstance(value, str) else value
    return records.text_at(value, column), *(_carried(row, one) for one in carried)


def _carried(row: dict[str, Any], field: Any) -> Any:
    value = row.get(field.name)
    if value is None:
        if field.nullable:
            return None
        raise WrongRowError(f"has no id at '{field.name}'")
    exact = type(value) is int and str(field.type) == "double" and abs(value) <= 1 << 53
    if _arrow_type(value) != str(field.type) and not exact:
        raise WrongRowError(f"holds {type_of(value)} at '{field.name}'; wanted {field.type}, as in the first row")
    return encodable(value) if isinstance(value, str) else value


def _arrow_type(value: object) -> str | None:
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        return None
    return {int: "int64", str: "string", float: "double", bool: "bool"}.get(type(value))


def _check_only_lines(choice: ColumnChoice, name: str) -> None:
    for one in (choice.column, *choice.carried):
        if one not in (None, _TEXT):
            raise UsageError(f"'{name}' has lines of plain text and no column '{one}', only '{_TEXT}'")


def _describe_objects(stream: BinaryIO, name: str, choice: ColumnChoice) -> Described:
    """Take columns and types from the first objects of a .jsonl file; a row that lacks a column is a wrong row."""
    pyarrow, _ = import_parquet()
    values = records.values_of(islice(records_of(stream, name, "jsonl"), records.LOOKED_AT))
    stream.seek(0)
    objects = [value for value in values if isinstance(value, dict)]
    if values and not objects:
        _check_only_lines(choice, name)
    keys = records.keys_of(values)
    column = choose_column(choice.column, keys, name) if keys else choice.column
    fields = []
    for one in choice.carried:
        value = next((row[one] for row in objects if row.get(one) is not None), None)
        if keys and value is None:
            choose_column(one, sorted(keys), name)
        kind = "string" if value is None else _arrow_type(value)
        if kind is None:
            raise UsageError(f"'{name}' holds {type_of(value)} at '{one}'; only texts and numbers can be carried")
        fields.append(pyarrow.field(one, pyarrow.type_for_alias(kind)))
    return Described(None, column, pyarrow.schema(fields))
