"""Copy the rows of rewritten files whose ids a job does not have yet: they are input that belongs to its output."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.rows import import_parquet, open_parquet
from whiten_scale.places import Entry, Folder, look_up, opened
from whiten_scale.plan import PLAN_FILE, Job
from whiten_scale.readers import Chunk, ColumnChoice, CutFile, InputFile, Piece, cut_file, read_pieces
from whiten_scale.shard import shard_name

_COPY = "/_rows-"
"""Beginning of the names of copies in a plan: no file of an input has such a name, as none begins with a slash."""

_ID = 3
"""Place of the ids in the tables of `read_pieces`: behind text, file and row."""


def is_copy(name: str) -> bool:
    """Return whether a file of a plan is a copy of rows."""
    return name.startswith(_COPY)


def _place(name: str) -> str:
    """Return the name of a copy in its folder; it has no ending, so that nobody takes it for a shard."""
    return name.removeprefix("/").removesuffix(".parquet")


def copy_entry(folder: Folder, name: str) -> Entry:
    """Return a copy as it is in the folder."""
    entry = look_up(folder.place(_place(name)))
    return Entry(entry.url, name, entry.size, entry.stamp)


def cut_copy(job: Job, entry: Entry) -> CutFile:
    """Read a copy, and cut it."""
    return cut_file(entry, ColumnChoice(_text_column(job), job.choice.id, job.choice.keep), job.per_shard)


def _text_column(job: Job) -> str:
    name = "whiten.text"
    while name in job.carried.names:
        name += "_"
    return name


def copy_new_rows(job: Job, cuts: Sequence[CutFile], folder: Folder, record_errors: bool) -> str | None:
    """Copy the rows of files with new ids into the folder; return the name of the copy, None for no rows.

    The files were rewritten, or came with those. An id that no file has any more is refused: its vector would stay. All
    shards have to be there.
    """
    pyarrow, parquet = import_parquet()
    from pyarrow import compute

    kind, first = job.carried.field(job.choice.id).type, cuts[0].file.name
    chunks = [part for chunk in _chunks(job, cuts, record_errors) for part in chunk.table.column(_ID).chunks]
    known, here = (_plain(ids) for ids in (_ids_of_shards(job, folder), pyarrow.chunked_array(chunks, kind)))
    try:
        fresh = compute.invert(compute.is_in(here, value_set=known))
        lost = known.filter(compute.invert(compute.is_in(known, value_set=here)))
    except pyarrow.ArrowNotImplementedError:
        reason = f"{first} was changed, and ids of type {kind} cannot be compared; name another --out"
        raise UsageError(reason) from None
    if len(lost):
        others = _plain(pyarrow.chunked_array(_ids_of_others(job, {cut.file.name for cut in cuts}), kind))
        lost = lost.filter(compute.invert(compute.is_in(lost, value_set=others)))
    if len(lost):
        raise UsageError(
            f"{folder.place(PLAN_FILE)}: {first} was changed, and lacks ids that it had: {len(lost):,}, such as "
            f"{lost[0].as_py()!r}; put them back, or name another --out"
        )
    if not compute.any(fresh).as_py():
        return None
    name = f"{_COPY}{job.extensions + 1:04d}-{_digest([cut.file for cut in cuts])}.parquet"
    if folder.has(_place(name)):  # another machine reads it
        return name
    text = pyarrow.field(_text_column(job), pyarrow.large_string(), nullable=False)
    schema, start = pyarrow.schema([text, *job.carried]), 0
    with folder.writing(_place(name)) as file, parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for chunk in _chunks(job, cuts, record_errors):
            rows = chunk.table.filter(fresh.slice(start, len(chunk.table)))
            start += len(chunk.table)
            writer.write_table(pyarrow.table([rows.column(0), *rows.columns[_ID:]], schema=schema))
    return name


def _plain(ids: Any) -> Any:
    """Return ids without a dictionary."""
    pyarrow, _ = import_parquet()
    return ids.cast(ids.type.value_type) if pyarrow.types.is_dictionary(ids.type) else ids


def _digest(files: Iterable[InputFile]) -> str:
    return hashlib.sha256(msgspec.json.encode([file.anywhere() for file in files])).hexdigest()[:16]


def _chunks(job: Job, cuts: Iterable[CutFile], record_errors: bool) -> Iterator[Chunk]:
    """Yield the rows of files; of wrong ones, the first is refused unless they are recorded."""
    for cut in cuts:
        for chunk in read_pieces([cut.file], cut.pieces, job.carried):
            if chunk.wrong and not record_errors:
                wrong = chunk.wrong[0]
                raise DataError(f"{wrong.file}: row {wrong.row} {wrong.reason}; correct it, or add --on-error record")
            yield chunk


def _ids_of_others(job: Job, names: set[str]) -> list[Any]:
    """Return the ids of the files of a job, but for copies and files of these names."""
    pieces, chunks = dict[int, list[Piece]](), list[Any]()
    for piece in (piece for shard in job.shards for piece in shard):
        pieces.setdefault(piece.file, []).append(piece)
    for place, file in enumerate(job.files):
        if file.name not in names and not is_copy(file.name):
            for chunk in read_pieces(job.files, pieces.get(place, []), job.carried):
                chunks += chunk.table.column(_ID).chunks
    return chunks


def _ids_of_shards(job: Job, folder: Folder) -> Any:
    """Return the ids of all shards."""
    pyarrow, _ = import_parquet()
    chunks = list[Any]()
    for name in map(shard_name, range(len(job.shards))):
        with opened(folder.place(name)) as stream:
            chunks += open_parquet(stream, folder.place(name)).read([job.choice.id]).column(0).chunks
    return pyarrow.chunked_array(chunks, job.carried.field(job.choice.id).type)
