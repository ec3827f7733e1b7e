"""Cut input files into pieces, and read the rows of pieces; `whiten_runtime.files.texts` says what a row is."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

import msgspec

from whiten_runtime.errors import DataError, UsageError, encodable
from whiten_runtime.files.records import Kind, Record, WrongRowError, content_of, keys_of, kind_of, records_of, type_of
from whiten_runtime.files.texts import (
    BATCH,
    Layout,
    choose_column,
    choose_strings,
    import_parquet,
    open_parquet,
    parquet_batches,
    read_layout,
    record_reader,
    strings_of,
)
from whiten_scale.places import Entry, look_up, opened


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Some consecutive records of a file."""

    file: int  # index of the file in the plan
    start: int  # first byte of the content, or first row of a Parquet file
    end: int  # byte or row after the last one
    row: int  # number of the first record's line, or of its row in a Parquet file, from 1
    records: int  # those without a text among them


class InputFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """File of texts."""

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
    """Which columns are read: those of the texts, of ids, and those to keep."""

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


class WrongRow(msgspec.Struct, frozen=True):
    """Row that holds no text."""

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
    """Some consecutive records of one file."""

    table: Any  # table of pyarrow: text, file, row, then the columns that are carried
    records: int  # those without a text among them
    wrong: list[WrongRow] = field(default_factory=list)


class CutFile(NamedTuple):
    """What is known of a file once it is cut."""

    file: InputFile
    carried: Any  # schema of pyarrow of the columns that are carried
    pieces: list[Piece]


def cut_file(entry: Entry, choice: ColumnChoice, per_shard: int) -> CutFile:
    """Read a file, of a Parquet file the footer, and cut it; a compressed file is one piece, however long."""
    kind, compressed = kind_of(entry.name) or ("txt", False)
    columns: tuple[str, ...] | None
    column: str | None
    if kind == "parquet":
        pyarrow, _ = import_parquet()
        with opened(entry.url) as stream:
            file = open_parquet(stream, entry.url)
            schema = file.schema_arrow
            columns, column = tuple(schema.names), choose_strings(choice.column, schema, entry.url)
            names = [choose_column(name, schema.names, entry.url) for name in choice.carried]
            carried = pyarrow.schema([pyarrow.field(name, schema.field(name).type) for name in names])
            pieces, digest = list(cut_parquet(file, per_shard)), footer_hash(stream)
    else:
        with opened(entry.url) as raw, content_of(raw, entry.url, compressed) as stream:
            layout, records = read_layout(stream, entry.url, kind, choice.column, choice.carried)
            columns, column, carried = layout.header, layout.column, _carried_schema(layout, entry.url, choice)
            pieces, digest = _cut_records(records, layout.start, None if compressed else per_shard)
    described = InputFile(
        **asdict(entry), kind=kind, compressed=compressed, columns=columns, column=column, sha256=digest
    )
    return CutFile(described, carried, pieces)


def _carried_schema(layout: Layout, name: str, choice: ColumnChoice) -> Any:
    """Return names and types of the columns that are carried: strings, or those of a .jsonl file's first values."""
    pyarrow, _ = import_parquet()
    objects = [value for value in layout.sample if isinstance(value, dict)]
    keys, fields = sorted(keys_of(objects)), []
    for column in choice.carried:
        value = next((row[column] for row in objects if row.get(column) is not None), None)
        if keys and value is None:
            choose_column(column, keys, name)
        kind = "string" if value is None else _arrow_type(value)
        if kind is None:
            raise UsageError(f"'{name}' holds {type_of(value)} at '{column}'; only texts and numbers can be carried")
        fields.append(pyarrow.field(column, pyarrow.type_for_alias(kind)))
    return pyarrow.schema(fields)


def _arrow_type(value: object) -> str | None:
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        return None
    return {int: "int64", str: "string", float: "double", bool: "bool"}.get(type(value))


def _cut_records(records: Iterable[Record], start: int, size: int | None) -> tuple[list[Piece], str]:
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


def read_pieces(files: Sequence[InputFile], pieces: Iterable[Piece], carried: Any) -> Iterator[Chunk]:
    """Yield the records of pieces; a file that was changed since the plan was made is refused."""
    pyarrow, _ = import_parquet()
    places = [("text", pyarrow.large_string()), ("file", pyarrow.string()), ("row", pyarrow.int64())]
    schema = pyarrow.schema([*(pyarrow.field(*place, nullable=False) for place in places), *carried])
    for piece in pieces:
        file = files[piece.file]
        _check_unchanged(file)
        yield from (_read_parquet if file.kind == "parquet" else _read_records)(file, piece, schema)
        _check_unchanged(file)


def _check_unchanged(file: InputFile) -> None:
    now = look_up(file.url)
    if (now.size, now.stamp) != (file.size, file.stamp):
        raise DataError(f"{file.url}: was changed since the plan was made; put it back, or name another --out")


def _read_records(file: InputFile, piece: Piece, schema: Any) -> Iterator[Chunk]:
    pyarrow, _ = import_parquet()
    carried = list(schema)[3:]
    read = record_reader(Layout(file.kind, file.columns, file.column), [column.name for column in carried])
    with opened(file.url) as raw, content_of(raw, file.url, file.compressed) as stream:
        stream.seek(piece.start)
        records = records_of(stream, file.name, file.kind, piece.row, piece.end - piece.start)
        while part := list(islice(records, BATCH)):
            rows, wrong = list[tuple[Any, ...]](), list[WrongRow]()
            for row, lines in part:
                try:
                    if values := read(row, lines):
                        text, *others = values
                        rows.append((encodable(text), file.name, row, *map(_carried_value, others, carried)))
                except WrongRowError as error:
                    wrong.append(WrongRow(file.name, row, str(error)))
            columns = list(zip(*rows, strict=True)) or [()] * len(schema)
            arrays = [pyarrow.array(values, column.type) for values, column in zip(columns, schema, strict=True)]
            yield Chunk(pyarrow.Table.from_arrays(arrays, schema=schema), len(part), wrong)


def _carried_value(value: Any, column: Any) -> Any:
    """Return a value in the type of its column."""
    if value is None:
        if column.nullable:
            return None
        raise WrongRowError(f"has no id at '{column.name}'")
    exact = type(value) is int and str(column.type) == "double" and abs(value) <= 1 << 53
    if _arrow_type(value) != str(column.type) and not exact:
        raise WrongRowError(f"holds {type_of(value)} at '{column.name}'; wanted {column.type}, as in the first row")
    return encodable(value) if isinstance(value, str) else value


def _read_parquet(file: InputFile, piece: Piece, schema: Any) -> Iterator[Chunk]:
    with opened(file.url) as stream:
        for row, batch in _batches(open_parquet(stream, file.name), file, piece, schema.names[3:]):
            yield _parquet_chunk(file, batch, row, schema)


def _batches(source: Any, file: InputFile, piece: Piece, carried: list[str]) -> Iterator[tuple[int, Any]]:
    """Yield batches of the rows of a piece, each with the number of its first row in the file."""
    start, groups, begin = 0, list[int](), None
    for group, rows in enumerate(group_rows(source)):
        if start < piece.end and start + rows > piece.start:
            groups.append(group)
            begin = start if begin is None else begin
        start += rows
    position = begin or 0
    columns = list(dict.fromkeys((str(file.column), *carried)))
    for batch in parquet_batches(source, file.name, columns, groups):
        first, last = max(position, piece.start), min(position + len(batch), piece.end)
        if first < last:
            yield first + 1, batch.slice(first - position, last - first)
        position += len(batch)


def _parquet_chunk(file: InputFile, batch: Any, row: int, schema: Any) -> Chunk:
    pyarrow, _ = import_parquet()
    ids = next((column.name for column in list(schema)[3:] if not column.nullable), None)
    missing = [False] * len(batch) if ids is None else batch.column(ids).is_null().to_pylist()
    places, texts, wrong = list[int](), list[str](), list[WrongRow]()
    for place, text in enumerate(strings_of(batch.column(str(file.column)))):
        if isinstance(text, WrongRowError):
            wrong.append(WrongRow(file.name, row + place, str(text)))
        elif missing[place]:
            wrong.append(WrongRow(file.name, row + place, f"has no id at '{ids}'"))
        else:
            texts.append(text)
            places.append(place)
    carried = pyarrow.Table.from_batches([batch]).select(schema.names[3:])
    carried = carried.take(pyarrow.array(places, pyarrow.int64())) if wrong else carried
    first = (texts, [file.name] * len(places), [row + place for place in places])
    arrays = [pyarrow.array(values, column.type) for values, column in zip(first, schema, strict=False)]
    arrays += [values.cast(column.type) for values, column in zip(carried.columns, list(schema)[3:], strict=True)]
    return Chunk(pyarrow.Table.from_arrays(arrays, schema=schema), len(batch), wrong)
