"""Read Parquet files: their columns, pieces of whole row groups where these are small, and the rows of a piece."""

import hashlib
import os
from collections.abc import Iterator
from itertools import chain
from typing import Any, BinaryIO

from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.texts import choose_column, import_parquet
from whiten_scale.inputs.lines import changed
from whiten_scale.inputs.pieces import ColumnChoice, Described, InputFile, Piece
from whiten_scale.places import opened
from whiten_scale.records import Chunk, WrongRow

_AT_ONCE = 4096

_END = 8
"""Bytes at the end of a Parquet file: the length of its footer, and the letters PAR1."""


def open_parquet(stream: BinaryIO, name: str) -> Any:
    """Open a Parquet file.

    Raises:
        DataError: it is none.
    """
    pyarrow, parquet = import_parquet()
    try:
        return parquet.ParquetFile(stream)
    except pyarrow.ArrowException as error:
        raise DataError(f"{name}: not a parquet file ({' '.join(str(error).split())})") from None


def describe(file: Any, name: str, choice: ColumnChoice) -> Described:
    """Return the columns of an open Parquet file.

    Raises:
        UsageError: a column does not exist, or that of the texts holds something else.
    """
    pyarrow, _ = import_parquet()
    schema = file.schema_arrow
    column = choose_column(choice.column, schema.names, name)
    kind = schema.field(column).type
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or str(kind) == "string_view"):
        raise UsageError(f"'{name}': column '{column}' holds {kind}; wanted strings, so choose another with --column")
    for one in choice.carried:
        choose_column(one, schema.names, name)
    fields = [pyarrow.field(one, schema.field(one).type) for one in choice.carried]
    return Described(tuple(schema.names), column, pyarrow.schema(fields))


def footer_hash(stream: BinaryIO) -> str:
    """Return the SHA-256 of the footer of a Parquet file, which holds places, sizes and statistics of its columns."""
    place = stream.seek(-_END, os.SEEK_END)
    length = int.from_bytes(stream.read(_END)[:4], "little")
    stream.seek(place - length)
    return hashlib.sha256(stream.read(length)).hexdigest()


def cut(file: Any, size: int) -> Iterator[Piece]:
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


def chunks(source: InputFile, piece: Piece, carried: Any) -> Iterator[Chunk]:
    """Yield the rows of a piece.

    Raises:
        UsageError: the file is gone.
        DataError: it cannot be read, or was changed.
    """
    pyarrow, _ = import_parquet()
    with opened(source.url) as stream:
        file = open_parquet(stream, source.name)
        if footer_hash(stream) != source.footer:
            raise changed(source)
        columns = list(dict.fromkeys((str(source.column), *carried.names)))
        try:
            for first, batch in _batches(file, piece, columns):
                yield _chunk(source, batch, first + 1, carried)
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
    for batch in file.iter_batches(_AT_ONCE, groups, columns, use_threads=False):
        first, last = max(position, piece.start), min(position + len(batch), piece.end)
        if first < last:
            yield first, batch.slice(first - position, last - first)
        position += len(batch)


def _chunk(source: InputFile, batch: Any, row: int, carried: Any) -> Chunk:
    pyarrow, _ = import_parquet()
    texts, kept, wrong = [], [], []
    ids = [batch.column(field.name).is_null().to_pylist() for field in carried if not field.nullable]
    missing = ids[0] if ids else [False] * len(batch)
    for index, text in enumerate(_strings(batch.column(str(source.column)))):
        if not isinstance(text, str):
            reason = "holds null; wanted a string" if text is None else "is not UTF-8"
            wrong.append(WrongRow(source.name, row + index, reason))
        elif missing[index]:
            wrong.append(WrongRow(source.name, row + index, f"has no id at '{carried.names[0]}'"))
        else:
            texts.append(text)
            kept.append(index)
    table = pyarrow.Table.from_batches([batch]).select(carried.names)
    table = table.take(pyarrow.array(kept, pyarrow.int64())) if wrong else table
    return Chunk(source.name, texts, [row + index for index in kept], table.cast(carried), len(batch), wrong)


def _strings(column: Any) -> list[Any]:
    """Return the strings of a column; the bytes of those that are not UTF-8."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        pyarrow, _ = import_parquet()
        parts = column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column
        return list(chain(map(_decoded, parts.cast(pyarrow.large_binary()).to_pylist())))


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value
