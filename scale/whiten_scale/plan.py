"""Plan shards: which records of which files become which output file. The same input gives the same plan everywhere."""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate
from typing import Any, cast, get_args

import msgspec

from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.texts import import_parquet
from whiten_scale.inputs import parquet, rows
from whiten_scale.inputs.lines import content_of
from whiten_scale.inputs.pieces import ColumnChoice, Described, InputFile, Kind, Piece
from whiten_scale.places import Entry, find, opened
from whiten_scale.records import Chunk

PER_SHARD = 100_000
"""Texts of a shard, at most: some minutes of one core with a small model, 150 MB of 384 float32 numbers."""

_READERS = 8
"""Files that are read at once for the plan: most of the time is waited for a store."""

Cut = tuple[InputFile, Described, tuple[Piece, ...]]


class Plan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Describes all input, and its shards in order.

    Attributes:
        files: the files, in order.
        shards: pieces of each shard.
        schema: columns that are carried: pyarrow's own serialisation, in base64.
        choice: columns that are read.
        per_shard: records of a shard, at most.
    """

    files: tuple[InputFile, ...]
    shards: tuple[tuple[Piece, ...], ...]
    schema: str
    choice: ColumnChoice
    per_shard: int

    @cached_property
    def carried(self) -> Any:
        """Return pyarrow's schema of the columns that are carried."""
        pyarrow, _ = import_parquet()
        return pyarrow.ipc.read_schema(pyarrow.py_buffer(base64.b64decode(self.schema)))

    @cached_property
    def hash(self) -> str:
        """Return the SHA-256 of the plan; it does not depend on where the files are, nor on when they were written."""
        files = tuple(msgspec.structs.replace(file, url="", stamp="") for file in self.files)
        return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(self, files=files))).hexdigest()

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Return for each shard the number of records before it, and last the number of all."""
        return tuple(accumulate(map(self.records, range(len(self.shards))), initial=0))

    def records(self, number: int) -> int:
        """Return the number of records of a shard."""
        return sum(piece.records for piece in self.shards[number])

    def chunks(self, number: int) -> Iterator[Chunk]:
        """Yield the records of a shard.

        Raises:
            UsageError: a file is gone.
            DataError: a file cannot be read, or was changed.
        """
        for piece in self.shards[number]:
            file = self.files[piece.file]
            read = parquet.chunks if file.kind == "parquet" else rows.chunks
            yield from read(file, piece, self.carried)


def listed(inputs: Sequence[str]) -> tuple[list[Entry], list[str]]:
    """Return the files of texts that directories, files and patterns name, and the names of others in directories.

    Raises:
        UsageError: there are none, two have one name, or a file that was named is of no known kind.
        DataError: a file system cannot be read.
    """
    found, others = [], []
    for given in inputs:
        for entry in find(given):
            if kind_of(entry.name) is not None:
                found.append(entry)
            elif entry.name == given.rstrip("/").rpartition("/")[2]:
                raise UsageError(
                    f"'{given}': unknown kind of file; wanted {', '.join(get_args(Kind))}, or one with .gz"
                )
            else:
                others.append(entry.name)
    names = [entry.name for entry in found]
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"two files of --input are called '{double}'; name the directory above both")
    if not found:
        raise UsageError(f"'{inputs[0]}' holds no file of texts; wanted {', '.join(get_args(Kind))}")
    return sorted(found, key=lambda entry: entry.name), others


def kind_of(name: str) -> tuple[Kind, bool] | None:
    """Return the kind of a file, and whether it is compressed; None for another kind."""
    parts = name.rpartition("/")[2].lower().split(".")
    compressed = parts[-1] == "gz"
    kind = parts[-2 if compressed and len(parts) > 2 else -1] if len(parts) > 1 else ""
    if kind not in get_args(Kind) or (compressed and kind == "parquet"):
        return None
    return cast(Kind, kind), compressed


def make_plan(entries: Iterable[Entry], choice: ColumnChoice, per_shard: int = PER_SHARD) -> Plan:
    """Read all files once, and return their plan. Of Parquet files, only the footers are read.

    Args:
        entries: the files, in order.
        choice: columns that are read.
        per_shard: records of a shard, at most; compressed files are one shard each, however long.

    Raises:
        UsageError: a column does not exist, or has another type in another file.
        DataError: a file cannot be read.
    """
    with ThreadPoolExecutor(_READERS, "whiten-plan") as executor:
        cuts = list(executor.map(lambda entry: _cut(entry, choice, per_shard), entries))
    files = tuple(file for file, _, _ in cuts)
    pieces = [msgspec.structs.replace(piece, file=index) for index, (_, _, cut) in enumerate(cuts) for piece in cut]
    if not pieces:
        raise DataError(f"{files[0].url}: holds no text, nor does any other file of --input")
    schema = base64.b64encode(bytes(_common(cuts, choice).serialize())).decode()
    return Plan(
        files=files, shards=tuple(_gathered(pieces, per_shard)), schema=schema, choice=choice, per_shard=per_shard
    )


def _cut(entry: Entry, choice: ColumnChoice, per_shard: int) -> Cut:
    """Read a file, and return what is known of it, and its pieces."""
    kind, compressed = kind_of(entry.name) or ("txt", False)
    if kind == "parquet":
        with opened(entry.url) as stream:
            file = parquet.open_parquet(stream, entry.url)
            described = parquet.describe(file, entry.url, choice)
            pieces, footer = tuple(parquet.cut(file, per_shard)), parquet.footer_hash(stream)
    else:
        footer = ""
        with content_of(entry.url, compressed) as stream:
            described = rows.describe(stream, entry.url, kind, choice)
            stream.seek(described.start)
            pieces = tuple(rows.cut(stream, entry.url, kind, described, None if compressed else per_shard))
    found = InputFile(
        name=entry.name,
        kind=kind,
        compressed=compressed,
        size=entry.size,
        columns=described.columns,
        column=described.column,
        footer=footer,
        url=entry.url,
        stamp=entry.stamp,
    )
    return found, described, pieces


def _gathered(pieces: Iterable[Piece], per_shard: int) -> Iterator[tuple[Piece, ...]]:
    """Yield shards of consecutive pieces, as long as they have no more than `per_shard` records together."""
    shard: list[Piece] = []
    for piece in pieces:
        if shard and sum(one.records for one in shard) + piece.records > per_shard:
            yield tuple(shard)
            shard = []
        shard.append(piece)
    if shard:
        yield tuple(shard)


def _common(cuts: Sequence[Cut], choice: ColumnChoice) -> Any:
    """Return the schema of the columns that are carried, which all files share; ids are not null.

    Raises:
        UsageError: a column has other types in other files.
    """
    pyarrow, _ = import_parquet()
    first, described, _ = next(one for one in cuts if one[2])
    for file, other, pieces in cuts:
        for one, another in zip(described.carried, other.carried, strict=True):
            if pieces and one.type != another.type:
                raise UsageError(
                    f"'{one.name}' is {one.type} in '{first.name}' and {another.type} in '{file.name}'; give both one "
                    "type, or embed them apart"
                )
    fields = [field.with_nullable(field.name != choice.id).remove_metadata() for field in described.carried]
    return pyarrow.schema(fields)
