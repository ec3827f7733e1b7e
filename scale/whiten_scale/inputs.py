"""Describe input files and their pieces; cut Parquet files at row groups, and read their rows."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec

from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.records import Kind
from whiten_runtime.files.texts import choose_column, import_parquet
from whiten_scale.places import opened

AT_ONCE = 4096
"""Records of a chunk."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Describes some consecutive records of a file."""

    file: int  # index of the file in the plan
    start: int  # first byte of the content, or first row of a Parquet file
    end: int  # byte or row after the last one
    row: int  # number of the first record's line, or of its row in a Parquet file, from 1
    records: int  # those without a text among them


class InputFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describes a file of texts."""

    name: str  # path below the directory that was given, or its own name
    kind: Kind
    compressed: bool = False
    size: int
    columns: tuple[str, ...] | None = None  # names in its header; None for lines that are texts, or JSON
    column: str | None = None  # column of the texts; None for lines that are texts
    sha256: str  # of its records; of a Parquet file, of its footer
    url: str  # where it is now
    stamp: str  # ETag, or time of its last change


class ColumnChoice(msgspec.Struct, frozen=True):
    """Holds which columns are read: those of the texts, of ids, and those to keep."""

    column: str | None = None
    id: str | None = None
    keep: tuple[str, ...] = ()

    def check(self) -> None:
        """Check that no column that is carried has the name of one that is written."""
        written = ("embedding", "code", *(() if self.id else ("file", "row")))
        if name := next((name for name in self.carried if name in written), None):
            raise UsageError(f"'{name}' is a column that is written itself; rename that of the input, or leave it out")

    @property
    def carried(self) -> tuple[str, ...]:
        """Return the names of the columns that are carried, ids first."""
        return tuple(dict.fromkeys((*([] if self.id is None else [self.id]), *self.keep)))


@dataclass(frozen=True)
class Described:
    """Holds what the beginning of a file says."""

    columns: tuple[str, ...] | None  # names in the header
    column: str | None  # column of the texts
    carried: Any  # schema of pyarrow of the columns that are carried
    start: int = 0  # first byte after the header
    row: int = 1  # number of the line there


class WrongRow(msgspec.Struct, frozen=True):
    """Describes a row that holds no text."""

    file: str
    row: int
    reason: str

    def error(self) -> DataError:
        """Return the error that names the file and the row."""
        return DataError(
            f"{self.file}: row {self.row} {self.reason}; correct it and name another --out, or leave it out by "
            "--on-error record of embed-many"
        )


@dataclass
class Chunk:
    """Holds some consecutive records of one file."""

    table: Any  # table of pyarrow: text, file, row, then the columns that are carried
    records: int  # those without a text among them
    wrong: list[WrongRow] = field(default_factory=list)


def chunk_schema(carried: Any) -> Any:
    """Return the schema of the tables of chunks, whose first three columns are known by their place."""
    pyarrow, _ = import_parquet()
    first = [("text", pyarrow.large_string()), ("file", pyarrow.string()), ("row", pyarrow.int64())]
    return pyarrow.schema([*(pyarrow.field(*one, nullable=False) for one in first), *carried])


def open_parquet(stream: BinaryIO, name: str) -> Any:
    """Open a Parquet file."""
    pyarrow, parquet = import_parquet()
    try:
        return parquet.ParquetFile(stream)
    except pyarrow.ArrowException as error:
        raise DataError(f"{name}: not a parquet file ({' '.join(str(error).split())})") from None


def describe_parquet(file: Any, name: str, choice: ColumnChoice) -> Described:
    """Return the columns of an open Parquet file."""
    pyarrow, _ = import_parquet()
    schema = file.schema_arrow
    column, *_ = [choose_column(one, schema.names, name) for one in (choice.column, *choice.carried)]
    kind = schema.field(column).type
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or str(kind) == "string_view"):
        raise UsageError(f"'{name}': column '{column}' holds {kind}; wanted strings, so choose another with --column")
    fields = [pyarrow.field(one, schema.field(one).type) for one in choice.carried]
    return Described(tuple(schema.names), column, pyarrow.schema(fields))


def footer_hash(stream: BinaryIO) -> str:
    """Return the SHA-256 of the footer of a Parquet file, which holds places, sizes and statistics of its columns."""
    place = stream.seek(-8, os.SEEK_END)  # the length of the footer, and the letters PAR1
    length = int.from_bytes(stream.read(8)[:4], "little")
    stream.seek(place - length)
    return hashlib.sha256(stream.read(length)).hexdigest()


def cut_parquet(file: Any, size: int) -> Iterator[Piece]:
    """Yield pieces of whole row groups, of `size` rows at most; larger groups are cut into equal parts."""
    start = end = 0
    for rows in group_rows(file):
        if end > start and end - start + rows > size:
            yield Piece(0, start, end, start + 1, end - start)
            start = end
        if rows > size:
            parts = -(-rows // size)
            for part in range(parts):
                first, last = (end + rows * place // parts for place in (part, part + 1))
                yield Piece(0, first, last, first + 1, last - first)
            start = end + rows
        end += rows
    if end > start:
        yield Piece(0, start, end, start + 1, end - start)


def group_rows(file: Any) -> list[int]:
    """Return the number of rows of each row group."""
    metadata = file.metadata
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def parquet_chunks(source: InputFile, piece: Piece, schema: Any) -> Iterator[Chunk]:
    """Yield the rows of a piece, with the schema of `chunk_schema`."""
    pyarrow, _ = import_parquet()
    with opened(source.url) as stream:
        file = open_parquet(stream, source.name)
        columns = list(dict.fromkeys((str(source.column), *schema.names[3:])))
        try:
            for first, batch in _batches(file, piece, columns):
                yield _chunk(source, batch, first + 1, schema)
        except pyarrow.ArrowException as error:
            raise DataError(f"{source.name}: cannot be read ({' '.join(str(error).split())})") from None


def _batches(file: Any, piece: Piece, columns: list[str]) -> Iterator[tuple[int, Any]]:
    """Yield batches of the rows of a piece, each with the index of its first row in the file."""
    start, groups, begin = 0, [], None
    for group, rows in enumerate(group_rows(file)):
        if start < piece.end and start + rows > piece.start:
            groups.append(group)
            begin = start if begin is None else begin
        start += rows
    position = begin or 0
    for batch in file.iter_batches(AT_ONCE, groups, columns, use_threads=False):
        first, last = max(position, piece.start), min(position + len(batch), piece.end)
        if first < last:
            yield first, batch.slice(first - position, last - first)
        position += len(batch)


def _chunk(source: InputFile, batch: Any, row: int, schema: Any) -> Chunk:
    pyarrow, _ = import_parquet()
    ids = [batch.column(field.name).is_null().to_pylist() for field in list(schema)[3:] if not field.nullable]
    missing = ids[0] if ids else [False] * len(batch)
    kept, texts, wrong = list[int](), list[str](), list[WrongRow]()
    for index, text in enumerate(_strings(batch.column(str(source.column)))):
        if not isinstance(text, str):
            reason = "holds null; wanted a string" if text is None else "is not UTF-8"
            wrong.append(WrongRow(source.name, row + index, reason))
        elif missing[index]:
            wrong.append(WrongRow(source.name, row + index, f"has no id at '{schema.names[3]}'"))
        else:
            texts.append(text)
            kept.append(index)
    carried = pyarrow.Table.from_batches([batch]).select(schema.names[3:])
    carried = carried.take(pyarrow.array(kept, pyarrow.int64())) if wrong else carried
    first = ([source.name] * len(kept), [row + index for index in kept])
    arrays = [pyarrow.array(values, one.type) for values, one in zip((texts, *first), schema, strict=False)]
    arrays += [column.cast(one.type) for column, one in zip(carried.columns, list(schema)[3:], strict=True)]
    return Chunk(pyarrow.Table.from_arrays(arrays, schema=schema), len(batch), wrong)


def _strings(column: Any) -> list[Any]:
    """Return the strings of a column; the bytes of those that are not UTF-8."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        pyarrow, _ = import_parquet()
        parts = column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column
        return list(map(_decoded, parts.cast(pyarrow.large_binary()).to_pylist()))


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value
