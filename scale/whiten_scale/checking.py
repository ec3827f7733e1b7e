"""Check the output of a job: which shards are there, whether all rows are, and whether their bytes are as written."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.texts import import_parquet
from whiten_scale.job import Job
from whiten_scale.places import Folder, opened
from whiten_scale.shard import ShardRecord, add_rows, check_mine, read_record, shard_name

ERRORS_FILE = "_errors.jsonl"

_READERS = 8

Advance = Callable[[int], object]


@dataclass(frozen=True)
class Totals:
    """Holds the sums over shards.

    Attributes:
        shards: number of shards.
        rows: rows of their files.
        blank: blank records.
        wrong: records that hold no text.
        sha256: SHA-256 over those of the shards, in order.
    """

    shards: int
    rows: int
    blank: int
    wrong: int
    sha256: str

    @classmethod
    def of(cls, records: Iterable[ShardRecord]) -> "Totals":
        """Return the sums over shards in the order of the plan."""
        found = list(records)
        digest = hashlib.sha256("".join(one.sha256 for one in found).encode()).hexdigest()
        counts = (sum(one.rows for one in found), sum(one.blank for one in found), sum(len(one.wrong) for one in found))
        return cls(len(found), *counts, digest)


def count_there(job: Job, out: Folder) -> int:
    """Return the number of shards whose files are there, by their names alone."""
    return len(out.names() & set(map(shard_name, range(len(job.plan.shards)))))


def finished(job: Job, out: Folder, numbers: Iterable[int]) -> dict[int, ShardRecord]:
    """Return the descriptions of those shards whose files are there, by number.

    Raises:
        UsageError: a file is of another job, or no shard of this one.
    """
    names = out.names()
    known = {shard_name(number) for number in range(len(job.plan.shards))}
    if strange := sorted(name for name in names - known if name.endswith(".parquet") and not name.startswith(".")):
        raise UsageError(f"{out.place(strange[0])}: is not part of this job; move it away, or name another --out")

    def read(number: int) -> tuple[int, ShardRecord]:
        return number, check_mine(read_record(out, shard_name(number)), job, number, out)

    with ThreadPoolExecutor(_READERS, "whiten-shards") as executor:
        return dict(executor.map(read, (number for number in numbers if shard_name(number) in names)))


def verify(job: Job, out: Folder, records: dict[int, ShardRecord], advance: Advance = lambda count: None) -> Totals:
    """Read all files of a job again, and return the sums over them.

    Args:
        job: the job.
        out: directory of the output.
        records: descriptions of the shards by number.
        advance: function that receives the number of records checked since its last call.

    Raises:
        DataError: a shard is missing, or has not the rows, or not the bytes, that were written.
    """
    for number in range(len(job.plan.shards)):
        place = out.place(shard_name(number))
        if number not in records:
            raise DataError(f"{place}: is missing; run the same command again without --shard")
        record, planned = records[number], job.plan.records(number)
        rows, sha256 = _measured(place)
        if rows != record.rows or record.records != planned or rows + record.blank + len(record.wrong) != planned:
            raise DataError(f"{place}: holds {rows} rows; wanted {record.rows} of {planned} records, so delete it")
        if sha256 != record.sha256:
            raise DataError(f"{place}: its rows are not those that were written; delete it, and run the command again")
        advance(planned)
    return Totals.of(records[number] for number in sorted(records))


def _measured(place: str) -> tuple[int, str]:
    """Return the number of rows of a shard's file, and their SHA-256."""
    pyarrow, parquet = import_parquet()
    digest, count = hashlib.sha256(), 0
    with opened(place) as stream:
        try:
            file = parquet.ParquetFile(stream)
            for group in range(file.metadata.num_row_groups):
                table = file.read_row_group(group, use_threads=False)
                add_rows(digest, table, _content(table.column(table.num_columns - 1)))
                count += len(table)
        except pyarrow.ArrowException as error:
            raise DataError(f"{place}: is damaged ({' '.join(str(error).split())}); delete it") from None
    return count, digest.hexdigest()


def _content(column: Any) -> bytes:
    return b"".join(
        np.ascontiguousarray(chunk.flatten().to_numpy(zero_copy_only=False)).tobytes() for chunk in column.chunks
    )


def write_errors(out: Folder, records: dict[int, ShardRecord]) -> int:
    """Write `_errors.jsonl` with all wrong rows in the order of the plan; return their number. None: no file."""
    lines = list(_lines(records))
    if lines:
        out.write(ERRORS_FILE, b"\n".join(lines) + b"\n")
    return len(lines)


def _lines(records: dict[int, ShardRecord]) -> Iterator[bytes]:
    for number in sorted(records):
        yield from (msgspec.json.encode(row) for row in records[number].wrong)
