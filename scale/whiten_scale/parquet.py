"""Cut Parquet files into pieces, and read the rows of pieces."""

import hashlib
import os
from bisect import bisect_right
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import accumulate
from typing import Any, BinaryIO

from whiten_runtime.files.rows import open_parquet, parquet_batches
from whiten_scale.places import opened

_PART = 1 << 20
"""Bytes of a column that are read at once."""


def file_hash(stream: BinaryIO, file: Any, columns: Collection[str]) -> str:
    """Return the SHA-256 of the footer of a Parquet file, and of the pages of columns of it.

    The footer holds places, sizes and statistics of the columns: a text that is replaced by one of its length may leave
    it as it was.
    """
    digest = hashlib.sha256()
    place = stream.seek(-8, os.SEEK_END)  # the length of the footer, and the letters PAR1
    length = int.from_bytes(stream.read(8)[:4], "little")
    _add(digest, stream, place - length, length)
    for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            path = f"{column.path_in_schema}."  # below the name of a column are the parts of lists and structures
            if any(path.startswith(f"{name}.") for name in columns):
                start = column.dictionary_page_offset or column.data_page_offset
                _add(digest, stream, min(start, column.data_page_offset), column.total_compressed_size)
    return digest.hexdigest()


def _add(digest: Any, stream: BinaryIO, start: int, length: int) -> None:
    stream.seek(start)
    while length > 0 and (part := stream.read(min(length, _PART))):
        digest.update(part)
        length -= len(part)


def cut_rows(file: Any, size: int) -> Iterator[tuple[int, int]]:
    """Yield first row and end of pieces of `size` rows at most: whole row groups, or equal parts of larger ones."""
    start = end = 0
    for rows in group_rows(file):
        if end > start and end - start + rows > size:
            yield start, end
            start = end
        if rows > size:
            parts = -(-rows // size)
            for part in range(parts):
                first, last = (end + rows * place // parts for place in (part, part + 1))
                yield first, last
            start = end + rows
        end += rows
    if end > start:
        yield start, end


def group_rows(file: Any) -> list[int]:
    """Return the number of rows of each row group."""
    metadata = file.metadata
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


class RowReader:
    """Reads rows of a Parquet file; rows that come later in the row group of the last call are read on from there.

    A row group can only be decoded from its beginning. Pieces of one group that are read in their order decode it once.
    """

    def __init__(self, url: str, name: str, columns: tuple[str, ...]) -> None:
        self._file = open_parquet(opened(url), name)
        self._name, self._columns = name, list(columns)
        self._starts = list(accumulate(group_rows(self._file), initial=0))
        self._group = -1  # that is being decoded
        self._batches: Iterator[Any] = iter(())  # of the group, after the last one
        self._last: tuple[int, Any] | None = None  # first row of the last batch, and the batch

    def read(self, start: int, end: int) -> Iterator[tuple[int, Any]]:
        """Yield batches of the rows from `start` to before `end`, each with its first row, from 0."""
        group = bisect_right(self._starts, start) - 1
        if self._last is None or group != self._group or self._last[0] > start:
            self._begin(group)
        while self._last is not None:
            row, batch = self._last
            first, last = max(row, start), min(row + len(batch), end)
            if first < last:
                yield first, batch.slice(first - row, last - first)
            if last == end:
                return
            self._advance()

    def _begin(self, group: int) -> None:
        self._group, self._last = group, None
        self._batches = parquet_batches(self._file, self._name, self._columns, [group])
        self._advance()

    def _advance(self) -> None:
        """Decode the next batch, of the next group after the end of this one."""
        row = self._starts[self._group] if self._last is None else self._last[0] + len(self._last[1])
        self._last = None
        batch = next(self._batches, None)
        if batch is not None:
            self._last = row, batch
        elif self._group + 2 < len(self._starts):
            self._begin(self._group + 1)


@lru_cache(maxsize=1)
def row_reader(url: str, stamp: str, name: str, columns: tuple[str, ...]) -> RowReader:
    """Return the reader of a file, that of the last call if it is of the same file as it was then."""
    return RowReader(url, name, columns)
