"""Copy the rows of rewritten files whose ids a job does not have yet: they are input that belongs to its output."""

from collections.abc import Iterable, Sequence
from typing import Any

from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.rows import import_parquet, open_parquet
from whiten_scale.places import Entry, Folder, look_up, opened
from whiten_scale.plan import PLAN_FILE, Job
from whiten_scale.readers import Chunk, ColumnChoice, CutFile, cut_file, read_pieces
from whiten_scale.shard import shard_name

_COPY = "/_rows-"
"""Beginning of the names of copies in a plan: no file of an input has such a name, as none begins with a slash."""

_TEXT = "whiten.text"

_ID = 3
"""Place of the ids in the tables of `read_pieces`: behind text, file and row."""


def is_copy(name: str) -> bool:
    """Return whether a file of a plan is a copy of rows."""
    return name.startswith(_COPY)


def copy_entry(folder: Folder, name: str) -> Entry:
    """Return a copy as it is in the folder; there, its name has no ending, so that nobody takes it for a shard."""
    entry = look_up(folder.place(name.removeprefix("/").removesuffix(".parquet")))
    return Entry(entry.url, name, entry.size, entry.stamp)


def cut_copy(job: Job, entry: Entry) -> CutFile:
    """Read a copy, and cut it."""
    return cut_file(entry, ColumnChoice(_TEXT, job.choice.id, job.choice.keep), job.per_shard)


def copy_new_rows(job: Job, changed: Sequence[CutFile], entries: Iterable[Entry], folder: Folder) -> str | None:
    """Copy the rows of rewritten files with new ids into the folder; return the name of the copy, None for no rows.

    An id that no file has any more is refused: its vector would stay.
    """
    pyarrow, parquet = import_parquet()
    from pyarrow import compute

    known, name = _known_ids(job, changed[0].file.name, folder), f"{_COPY}{job.extensions + 1:04d}.parquet"

    def fresh(chunk: Chunk) -> Any:
        return chunk.table.filter(compute.invert(compute.is_in(chunk.table.column(_ID), value_set=known)))

    here = pyarrow.chunked_array([], known.type)
    rows = 0
    for cut in changed:
        for chunk in read_pieces([cut.file], cut.pieces, job.carried):
            if chunk.wrong:
                raise DataError(f"{chunk.wrong[0].file}: row {chunk.wrong[0].row} {chunk.wrong[0].reason}; correct it")
            here = pyarrow.chunked_array([*here.chunks, *chunk.table.column(_ID).chunks], known.type)
            rows += len(fresh(chunk))
    lost = known.filter(compute.invert(compute.is_in(known, value_set=here)))
    others = [entry for entry in entries if all(entry.name != cut.file.name for cut in changed)]
    for entry in others if len(lost) else []:
        cut = cut_file(entry, job.choice, job.per_shard)
        for chunk in read_pieces([cut.file], cut.pieces, job.carried):
            lost = lost.filter(compute.invert(compute.is_in(lost, value_set=chunk.table.column(_ID))))
    if len(lost):
        raise UsageError(
            f"{folder.place(PLAN_FILE)}: {changed[0].file.name} was changed, and lacks ids that it had: {len(lost):,}, "
            f"such as {lost[0].as_py()!r}; put them back, or name another --out"
        )
    if not rows:
        return None
    schema = pyarrow.schema([pyarrow.field(_TEXT, pyarrow.large_string(), nullable=False), *job.carried])
    with (
        folder.writing(name.removeprefix("/").removesuffix(".parquet")) as file,
        parquet.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for cut in changed:
            for chunk in read_pieces([cut.file], cut.pieces, job.carried):
                text, _, _, *carried = fresh(chunk).columns
                writer.write_table(pyarrow.table([text, *carried], schema=schema))
    return name


def _known_ids(job: Job, name: str, folder: Folder) -> Any:
    """Return the ids of all shards."""
    pyarrow, _ = import_parquet()
    names, chunks = folder.names(), list[Any]()
    for shard in map(shard_name, range(len(job.shards))):
        if shard not in names:
            raise UsageError(
                f"{folder.place(PLAN_FILE)}: {name} was changed before the job was done; put it back, and run the job "
                "to its end first"
            )
        with opened(folder.place(shard)) as stream:
            table = open_parquet(stream, folder.place(shard)).read([job.choice.id])
            chunks += table.column(0).chunks
    return pyarrow.chunked_array(chunks, job.carried.field(job.choice.id).type)
