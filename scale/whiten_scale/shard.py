"""Embed one shard: some pieces of the input become one Parquet file, which appears whole or not at all."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import msgspec

from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.texts import import_parquet
from whiten_scale.job import Job
from whiten_scale.places import Folder, opened
from whiten_scale.records import Chunk, Window, WrongRow, windows
from whiten_scale.vectors import Vectors

SHARD_KEY = "whiten.shard"
"""Key of a shard's description in the metadata of its file."""

Advance = Callable[[int], object]


class ShardRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a finished shard, in the metadata of its file.

    Attributes:
        key: SHA-256 of all that decides on the output of its job.
        shard: its number.
        records: records that it was made of.
        rows: rows of the file.
        blank: records that are blank lines of .jsonl, .csv and .tsv files.
        wrong: records that hold no text.
        sha256: of files, rows and vectors; what is carried is not in it.
    """

    key: str
    shard: int
    records: int
    rows: int
    blank: int
    wrong: tuple[WrongRow, ...]
    sha256: str


def shard_name(number: int) -> str:
    """Return the name of a shard's file."""
    return f"part-{number:06d}.parquet"


def embed_shard(
    vectors: Vectors,
    job: Job,
    number: int,
    out: Folder,
    record_errors: bool = False,
    advance: Advance = lambda count: None,
) -> ShardRecord:
    """Embed a shard, unless its file is there; return its description.

    Windows of texts begin with the shard, so that the bytes of the file depend on nothing else.

    Args:
        vectors: what computes the vectors.
        job: the job.
        number: number of the shard.
        out: directory of the output.
        record_errors: leave wrong rows out, and describe them in the file, instead of raising.
        advance: function that receives the number of records done since its last call.

    Raises:
        UsageError: there is a file of this name that is of another job, or of none.
        DataError: a row holds no text, or the input cannot be read, or was changed.
        WhitenError: the file cannot be written.
    """
    name = shard_name(number)
    if out.has(name):
        found = check_mine(read_record(out, name), job, number, out)
        advance(found.records)
        return found
    _, parquet = import_parquet()
    schema = _schema(job, vectors)
    counter = _Counter(record_errors, advance)
    digest, count = hashlib.sha256(), 0
    with out.writing(name) as file:
        with parquet.ParquetWriter(file, schema, **_encoding(schema, vectors)) as writer:
            for window in windows(counter.passing(job.plan.chunks(number)), vectors.window):
                table = _table(window, vectors, schema, digest)
                writer.write_table(table, row_group_size=len(table))
                count += len(table)
                counter.report()
            record = ShardRecord(
                key=job.key,
                shard=number,
                records=counter.records,
                rows=count,
                blank=counter.records - count - len(counter.wrong),
                wrong=tuple(counter.wrong),
                sha256=digest.hexdigest(),
            )
            writer.add_key_value_metadata({SHARD_KEY: msgspec.json.encode(record).decode()})
        if record.records != job.plan.records(number):
            raise DataError(
                f"{out.place(name)}: {record.records} records were read, but {job.plan.records(number)} planned"
            )
    counter.report()
    return record


class _Counter:
    """Counts the records that pass, and keeps the wrong ones."""

    def __init__(self, record_errors: bool, advance: Advance) -> None:
        self.records, self.wrong = 0, list[WrongRow]()
        self._record_errors, self._advance, self._reported = record_errors, advance, 0

    def passing(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Yield the chunks.

        Raises:
            DataError: a record is wrong, and not to be recorded.
        """
        for chunk in chunks:
            if chunk.wrong and not self._record_errors:
                raise chunk.wrong[0].error()
            self.records += chunk.records
            self.wrong += chunk.wrong
            yield chunk

    def report(self) -> None:
        """Report the records since the last report."""
        self._advance(self.records - self._reported)
        self._reported = self.records


def read_record(out: Folder, name: str) -> ShardRecord | None:
    """Return the description of a shard's file; None if the file has none.

    Raises:
        DataError: the file cannot be read.
    """
    pyarrow, parquet = import_parquet()
    with opened(out.place(name)) as file:
        return _record_of(file, pyarrow, parquet)


def _record_of(file: BinaryIO, pyarrow: Any, parquet: Any) -> ShardRecord | None:
    try:
        content = (parquet.read_metadata(file).metadata or {}).get(SHARD_KEY.encode())
        return None if content is None else msgspec.json.decode(content, type=ShardRecord)
    except (pyarrow.ArrowException, msgspec.DecodeError):
        return None


def check_mine(record: ShardRecord | None, job: Job, number: int, out: Folder) -> ShardRecord:
    """Return the description of a shard's file, if it is of this job.

    Raises:
        UsageError: it is not.
    """
    if record is None or (record.key, record.shard) != (job.key, number):
        what = "is no shard that whiten has written" if record is None else "is a shard of another job"
        raise UsageError(f"{out.place(shard_name(number))}: {what}; move it away, or name another --out")
    return record


def _schema(job: Job, vectors: Vectors) -> Any:
    """Return the schema of the output: the id or file and row, what is carried, the vector."""
    pyarrow, _ = import_parquet()
    places = [] if job.plan.choice.id else [("file", pyarrow.string()), ("row", pyarrow.int64())]
    fields = [pyarrow.field(*place, nullable=False) for place in places]
    fields += [*job.plan.carried, pyarrow.field(vectors.column, vectors.arrow_type(), nullable=False)]
    return pyarrow.schema(fields, metadata=vectors.metadata)


def _encoding(schema: Any, vectors: Vectors) -> dict[str, Any]:
    """Return how columns are written: numbers of vectors as they are, for they hardly compress."""
    others = [name for name in schema.names if name != vectors.column]
    kinds = dict.fromkeys(others, "zstd") | {f"{vectors.column}.list.element": "none"}
    return {"compression": kinds, "use_dictionary": others, "write_statistics": others}


def _table(window: Window, vectors: Vectors, schema: Any, digest: Any) -> Any:
    pyarrow, _ = import_parquet()
    rows = vectors.of(window.texts)
    flat = pyarrow.array(rows.ravel())
    columns = [*window.carried.columns, pyarrow.FixedSizeListArray.from_arrays(flat, rows.shape[1])]
    if len(columns) < len(schema):
        columns = [pyarrow.array(window.files), pyarrow.array(window.rows, pyarrow.int64()), *columns]
    table = pyarrow.table(columns, schema=schema)
    add_rows(digest, table, rows.tobytes())
    return table


def add_rows(digest: Any, table: Any, content: bytes) -> None:
    """Add rows to the SHA-256 of a shard: their ids, or files and rows, and the bytes of their vectors."""
    names = table.schema.names
    for name in names[: 2 if names[:2] == ["file", "row"] else 1]:
        digest.update(repr(table.column(name).to_pylist()).encode("utf-8", "surrogatepass"))
    digest.update(content)
