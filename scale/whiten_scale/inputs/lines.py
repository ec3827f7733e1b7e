"""Cut files of lines where records end, and read the records of a piece."""

import csv
import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from whiten_runtime.errors import DataError
from whiten_runtime.ort.process import allow_long_csv_fields
from whiten_scale.inputs.pieces import InputFile, Piece
from whiten_scale.places import opened
from whiten_scale.records import WrongRowError

LONGEST = 64 << 20
"""Bytes of the longest record that is read, as in `whiten embed`."""

_BLOCK = 8 << 20
_QUOTE = b'"'
_NEWLINE = ord("\n")

Record = tuple[int, list[bytes]]
"""Number of the line on which a record begins, and its lines."""

allow_long_csv_fields()


@contextmanager
def content_of(url: str, compressed: bool) -> Iterator[BinaryIO]:
    """Open the content of a file of lines.

    Raises:
        UsageError: there is no such file.
        DataError: it cannot be read, or is not a complete gzip file.
    """
    with opened(url) as raw:
        try:
            # GzipFile is a BinaryIO in all but name.
            yield gzip.GzipFile(fileobj=raw) if compressed else raw  # type: ignore[misc]
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{url}: not a complete gzip file ({error})") from None


def cut_lines(stream: BinaryIO, start: int, row: int, size: int | None) -> Iterator[Piece]:
    """Yield pieces of `size` lines each; None for one piece. The stream is at byte `start`, on line `row`."""
    digest, begin, records, position, tail = hashlib.sha256(), start, 0, start, False
    while block := stream.read(_BLOCK):
        done = 0
        while True:
            count = block.count(b"\n", done)
            if size is None or records + count < size:
                break
            ends = np.flatnonzero(np.frombuffer(block, np.uint8)[done:] == _NEWLINE)
            end = done + int(ends[size - records - 1]) + 1
            digest.update(memoryview(block)[done:end])
            yield Piece(0, begin, position + end, row, size, digest.hexdigest())
            digest, begin, row, records, done = hashlib.sha256(), position + end, row + size, 0, end
        digest.update(memoryview(block)[done:])
        records += count
        tail = not block.endswith(b"\n") and done < len(block)
        position += len(block)
    if position > begin:
        yield Piece(0, begin, position, row, records + tail, digest.hexdigest())


def cut_records(records: Iterable[Record], start: int, size: int | None) -> Iterator[Piece]:
    """Yield pieces of `size` records each, of records that may have several lines."""
    digest, begin, position, count, first = hashlib.sha256(), start, start, 0, 0
    for row, lines in records:
        first = first or row
        for line in lines:
            digest.update(line)
            position += len(line)
        count += 1
        if count == size:
            yield Piece(0, begin, position, first, count, digest.hexdigest())
            digest, begin, count, first = hashlib.sha256(), position, 0, 0
    if count:
        yield Piece(0, begin, position, first, count, digest.hexdigest())


def lines_of(stream: BinaryIO, name: str, row: int, left: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their numbers, from the stream's place on.

    Args:
        stream: the content.
        name: name of the file, for messages.
        row: number of the first line.
        left: number of bytes to read; None for all.

    Raises:
        DataError: a line is too long.
    """
    while line := stream.readline(LONGEST + 1 if left is None else min(left, LONGEST + 1)):
        if len(line) > LONGEST:
            raise DataError(
                f"{name}: row {row} is longer than {LONGEST >> 20} MiB; give one text a line, or shorten it"
            )
        yield row, line
        row += 1
        if left is not None:
            left -= len(line)
            if not left:
                return


def single_lines(lines: Iterable[tuple[int, bytes]], name: str) -> Iterator[Record]:
    """Yield every line as a record."""
    return ((row, [line]) for row, line in lines)


def quoted_records(lines: Iterator[tuple[int, bytes]], name: str) -> Iterator[Record]:
    """Yield the records of a .csv file, whose quoted fields may hold ends of lines.

    Raises:
        DataError: quotes are not closed, or followed by something, so that nobody knows where records end.
    """
    for row, line in lines:
        if _QUOTE not in line:
            yield row, [line]
            continue
        taken = [line]
        try:
            next(csv.reader(_fed(taken, lines, name), strict=True))
        except csv.Error as error:
            raise DataError(f"{name}: row {row}: {error}; correct its quotes") from None
        yield row, taken


def _fed(taken: list[bytes], lines: Iterator[tuple[int, bytes]], name: str) -> Iterator[str]:
    """Yield the first line, then further ones as they are asked for, which are added to `taken`."""
    yield plain(taken[0])
    length = len(taken[0])
    for row, line in lines:
        length += len(line)
        if length > LONGEST:
            raise DataError(f"{name}: row {row} is in a field of more than {LONGEST >> 20} MiB; close its quotes")
        taken.append(line)
        yield plain(line)


def plain(line: bytes) -> str:
    """Return a line in which quotes and separators are where they are in its text, whatever its encoding."""
    return line.rstrip(b"\r\n").decode("latin-1") + "\n"


def decoded(line: bytes, first: bool) -> str:
    """Return the text of a line without its end.

    Args:
        line: the line.
        first: whether it is the first one of the file, which may begin with a byte order mark.

    Raises:
        WrongRowError: it is not UTF-8, or holds a NUL byte.
    """
    if b"\0" in line:
        raise WrongRowError("holds a NUL byte; wanted UTF-8 text")
    try:
        return line.decode("utf-8-sig" if first else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise WrongRowError(f"is not UTF-8 (byte 0x{line[error.start]:02x})") from None


class Hashed:
    """Passes the records of a piece on, and checks afterwards that its bytes are those that were planned."""

    def __init__(self, piece: Piece, file: InputFile) -> None:
        self._piece, self._file, self._digest = piece, file, hashlib.sha256()

    def __call__(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yield the records.

        Raises:
            DataError: the file was changed since it was planned.
        """
        for record in records:
            for line in record[1]:
                self._digest.update(line)
            yield record
        if self._digest.hexdigest() != self._piece.sha256:
            raise changed(self._file)


def changed(file: InputFile) -> DataError:
    """Return the error of a file that is not as it was planned."""
    return DataError(f"{file.url}: was changed since the plan was made; put the old file back, or name another --out")


def records_of(file: InputFile, piece: Piece, split: Callable[[Any, str], Iterator[Record]]) -> Iterator[Record]:
    """Yield the records of a piece.

    Raises:
        UsageError: the file is gone.
        DataError: it cannot be read, or was changed.
    """
    with content_of(file.url, file.compressed) as stream:
        stream.seek(piece.start)
        lines = lines_of(stream, file.name, piece.row, piece.end - piece.start)
        yield from Hashed(piece, file)(split(lines, file.name))
