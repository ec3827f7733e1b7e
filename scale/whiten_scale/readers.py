"""Cut input files into pieces, and read the rows of pieces; `whiten_runtime.files.rows` says what a row is."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import msgspec

from whiten_runtime.errors import DataError, UsageError, encodable
from whiten_runtime.files.compressed import Compression, content_of
from whiten_runtime.files.rows import (
    BATCH,
    Kind,
    Layout,
    Record,
    WrongRowError,
    choose_column,
    choose_strings,
    import_parquet,
    keys_of,
    kind_of,
    open_parquet,
    read_layout,
    record_reader,
    records_of,
    strings_of,
)
from whiten_scale.columns import JsonColumn, carried_value, cast_column, watched
from whiten_scale.parquet import cut_rows, file_hash, row_reader
from whiten_scale.places import Entry, look_up, opened

CHUNK_BYTES = 16 << 20
"""Bytes of records that are read at once, about: the memory that very long texts take."""


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
    compression: Compression | None = None
    size: int
    columns: tuple[str, ...] | None = None  # names in its header; None for lines that are texts, or JSON
    column: str | None = None  # column of the texts; None for lines that are texts
    sha256: str  # of its records; of a Parquet file, of its footer and the columns that are read
    url: str  # where it is now
    stamp: str  # ETag, or time of its last change

    def anywhere(self) -> "InputFile":
        """Return it without its place and time."""
        return msgspec.structs.replace(self, url="", stamp="")

    def entry(self) -> Entry:
        """Return it as a folder lists it."""
        return Entry(self.url, self.name, self.size, self.stamp)


class ColumnChoice(msgspec.Struct, frozen=True):
    """Names the columns to read: texts, ids, and those to keep."""

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
    """Describes a file that is cut into shards."""

    file: InputFile
    carried: Any  # schema of pyarrow of the columns that are carried
    pieces: list[Piece]
    absent: dict[str, list[str]]  # columns that no object of a .jsonl file has, and the keys at its beginning


def cut_file(entry: Entry, choice: ColumnChoice, per_shard: int) -> CutFile:
    """Read a file, of a Parquet file what is used of it, and cut it; a compressed file is one piece, however long."""
    pyarrow, _ = import_parquet()
    kind, compression = kind_of(entry.name) or ("txt", None)
    columns: tuple[str, ...] | None
    column: str | None
    absent = dict[str, list[str]]()
    if kind == "parquet":
        with opened(entry.url) as stream:
            file = open_parquet(stream, entry.url)
            schema = file.schema_arrow
            columns, column = tuple(schema.names), choose_strings(choice.column, schema, entry.url)
            names = [choose_column(name, schema.names, entry.url) for name in choice.carried]
            carried = pyarrow.schema([pyarrow.field(name, schema.field(name).type) for name in names])
            pieces = [Piece(0, start, end, start + 1, end - start) for start, end in cut_rows(file, per_shard)]
            digest = file_hash(stream, file, {column, *names})
    else:
        with opened(entry.url) as raw, content_of(raw, entry.url, compression) as content:
            layout, records = read_layout(content, entry.url, kind, choice.column, choice.carried)
            columns, column = layout.header, layout.column
            keys = [JsonColumn(name) for name in choice.carried] if kind == "jsonl" else []
            records = watched(records, entry.url, keys) if keys else records
            pieces, digest = _cut_records(records, layout.start, None if compression else per_shard)
        types = [key.type for key in keys] or [pyarrow.string()] * len(choice.carried)
        carried = pyarrow.schema(list(zip(choice.carried, types, strict=True)))
        absent = {key.name: sorted(keys_of(layout.sample)) for key in keys if key.absent}
    described = InputFile(
        **asdict(entry), kind=kind, compression=compression, columns=columns, column=column, sha256=digest
    )
    return CutFile(described, carried, pieces, absent)


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
    with opened(file.url) as raw, content_of(raw, file.url, file.compression) as stream:
        if file.compression is None:
            stream.seek(piece.start)
        else:  # one piece, which begins after the header
            stream.read(piece.start)
        for part in _parts(records_of(stream, file.name, file.kind, piece.row, piece.end - piece.start)):
            rows, wrong = list[tuple[Any, ...]](), list[WrongRow]()
            for row, lines in part:
                try:
                    if values := read(row, lines):
                        text, *others = values
                        rows.append((encodable(text), file.name, row, *map(carried_value, others, carried)))
                except WrongRowError as error:
                    wrong.append(WrongRow(file.name, row, str(error)))
            columns = list(zip(*rows, strict=True)) or [()] * len(schema)
            arrays = [pyarrow.array(values, column.type) for values, column in zip(columns, schema, strict=True)]
            yield Chunk(pyarrow.Table.from_arrays(arrays, schema=schema), len(part), wrong)


def _parts(records: Iterator[Record]) -> Iterator[list[Record]]:
    """Yield records in lists of `BATCH` at most, and of about `CHUNK_BYTES`."""
    part, size = list[Record](), 0
    for row, lines in records:
        part.append((row, lines))
        size += sum(map(len, lines))
        if len(part) == BATCH or size >= CHUNK_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _read_parquet(file: InputFile, piece: Piece, schema: Any) -> Iterator[Chunk]:
    columns = tuple(dict.fromkeys((str(file.column), *schema.names[3:])))
    for row, batch in row_reader(file.url, file.stamp, file.name, columns).read(piece.start, piece.end):
        yield _parquet_chunk(file, batch, row + 1, schema)


def _parquet_chunk(file: InputFile, batch: Any, row: int, schema: Any) -> Chunk:
    pyarrow, _ = import_parquet()
    carried, wrong = list[Any](), dict[int, str]()
    for column in list(schema)[3:]:
        values, misfits = cast_column(batch.column(column.name), column)
        if not column.nullable:
            absent = f"has no id at '{column.name}'"
            wrong |= {place: absent for place, null in enumerate(values.is_null().to_pylist()) if null}
        wrong |= {place: str(error) for place, error in misfits.items()}
        carried.append(values)
    texts = strings_of(batch.column(str(file.column)))
    wrong |= {place: str(text) for place, text in enumerate(texts) if isinstance(text, WrongRowError)}
    places = [place for place in range(len(batch)) if place not in wrong]
    if wrong:
        carried = [values.take(pyarrow.array(places, pyarrow.int64())) for values in carried]
    first = ([texts[place] for place in places], [file.name] * len(places), [row + place for place in places])
    arrays = [pyarrow.array(values, column.type) for values, column in zip(first, schema, strict=False)]
    table = pyarrow.Table.from_arrays([*arrays, *carried], schema=schema)
    return Chunk(table, len(batch), [WrongRow(file.name, row + place, wrong[place]) for place in sorted(wrong)])
