"""Write vectors of many texts to a file, so that a run that was interrupted goes on where its state was saved.

Beside FILE are FILE.partial, the vectors so far, and FILE.partial.json, their number and what they were made with.
Both are deleted when FILE is complete.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.journal import JournalWriter, to_parquet
from whiten_runtime.files.locks import lock_descriptor
from whiten_runtime.files.pace import Pace
from whiten_runtime.files.replacing import flush, hidden_file, replacing
from whiten_runtime.files.resume_state import (
    FORMAT,
    Digests,
    HashedFile,
    State,
    add_content,
    add_texts,
    difference,
    open_partial,
    partial_of,
    read_state,
    state_of,
    write_state,
)
from whiten_runtime.files.vector_metadata import VectorMetadata
from whiten_runtime.files.writable import written_as
from whiten_runtime.files.write_vectors import (
    ELSEWHERE,
    Vectors,
    Writer,
    publish_vectors,
    write_parts,
    writer_of,
    writing_vectors,
    written_last,
)

Say = Callable[[str], object]


class WindowWriter(Protocol):
    """Writes windows of texts and their vectors.

    Attributes:
        resumed: number of texts whose vectors an earlier run had computed.
        saved: number of texts that the next run need not embed again.
    """

    resumed: int
    saved: int

    def write(self, texts: Sequence[str], vectors: Vectors) -> None:
        """Append a window of texts and their vectors."""

    def finish(self) -> int:
        """Complete FILE, and return the number of vectors in it."""


class ResumableWriter:
    """Writes windows of vectors, and saves the state after a window when it is time to.

    Attributes:
        resumed: number of texts whose vectors an earlier run had computed.
        saved: number of texts that the next run need not embed again.
    """

    def __init__(
        self, path: Path, file: BinaryIO, metadata: VectorMetadata, header: bool, state: State, digests: Digests
    ) -> None:
        self.resumed = self.saved = state.texts
        self._path, self._file, self._metadata, self._state, self._digests = path, file, metadata, state, digests
        self._count, self._pace = state.texts, Pace()
        self._writer: Writer
        hashed = HashedFile(file, digests.content, written_last(path, metadata))
        if path.suffix.lower() == ".parquet":
            self._writer = JournalWriter(hashed, metadata)
        else:
            self._writer = writer_of(path, hashed, metadata, header, state.texts)

    def write(self, texts: Sequence[str], vectors: Vectors) -> None:
        """Append a window of texts and their vectors."""
        write_parts(self._writer, texts, vectors)
        add_texts(self._digests.texts, texts)
        self._count += len(texts)
        if self._pace.is_due():
            with self._pace.saving():
                self._save()

    def finish(self) -> int:
        """Complete FILE, delete what was kept beside it, and return the number of vectors."""
        self._writer.finish()
        if isinstance(self._writer, JournalWriter):
            with replacing(self._path, ELSEWHERE) as whole:
                to_parquet(self._file, whole, self._metadata)
        else:
            publish_vectors(self._path, self._file, partial_of(self._path), self._metadata, self._count)
        self.discard()
        return self._count

    def discard(self) -> None:
        """Delete what was kept for the next run."""
        partial = partial_of(self._path)
        if not self._file.closed and _is_open_file(partial, self._file):
            partial.unlink()
        state_of(self._path).unlink(missing_ok=True)  # the last: FILE.partial is never without its state

    def _save(self) -> None:
        flush(self._file)
        texts, content = self._digests.texts.hexdigest(), self._digests.content.hexdigest()
        self._state = msgspec.structs.replace(
            self._state, texts=self._count, size=self._file.tell(), sha256=texts, content_sha256=content
        )
        write_state(self._path, self._state)
        self.saved = self._count


class _PlainWriter:
    """Writes windows of vectors to a hidden file that an interrupted run does not keep."""

    resumed = saved = 0

    def __init__(self, writer: Writer) -> None:
        self._writer, self._count = writer, 0

    def write(self, texts: Sequence[str], vectors: Vectors) -> None:
        write_parts(self._writer, texts, vectors)
        self._count += len(texts)

    def finish(self) -> int:
        return self._count


@contextmanager
def resuming(
    path: Path,
    metadata: VectorMetadata,
    header: bool,
    made_with: Mapping[str, str],
    read: Callable[[], Iterator[str]],
    restart: bool = False,
    say: Say = lambda message: None,
) -> Iterator[tuple[WindowWriter, Iterator[str]]]:
    """Yield a writer of vectors, and the texts whose vectors it does not have yet.

    FILE is complete after the block. After an error, what was saved stays for the next run; if nothing was, no file
    stays. Where files cannot be locked, as on Windows and on some network file systems, nothing is saved or continued,
    since two runs could write to one file.

    Args:
        path: the file: .npy, .jsonl or .parquet.
        metadata: metadata of the vectors.
        header: begin a .jsonl file with its metadata.
        made_with: what the vectors depend on besides the texts. A state of anything else is not used.
        read: function that reads the texts from the first.
        restart: do not use the state of an interrupted run.
        say: receives a line if a state is used, or found and not used.

    Raises:
        UsageError: another process writes the file, or files that are not of whiten have the names of the state.
        DataError: the vectors that an interrupted run left are damaged.
        WhitenError: a file cannot be written; the message names `path`.
    """
    if not _can_lock(path):
        if read_state(path, restart) is not None:
            _say_unused(path, "the file system does not lock files; if no other process writes it, delete it", say)
        with writing_vectors(path, metadata, header) as plain:
            yield _PlainWriter(plain), read()
        return
    with written_as(path, ELSEWHERE), _locked(path, restart) as (file, found):
        start = written_last(path, metadata)
        state, digests, texts = _begin(path, file, found, State.new(made_with), start, read, say)
        write_state(path, state)
        file.truncate(state.size)
        file.seek(state.size)
        writer = ResumableWriter(path, file, metadata, header, state, digests)
        try:
            yield writer, texts
        except BaseException:
            if not writer.saved:
                with suppress(OSError):
                    writer.discard()
            raise


def _begin(
    path: Path, file: BinaryIO, found: State, new: State, start: int, read: Callable[[], Iterator[str]], say: Say
) -> tuple[State, Digests, Iterator[str]]:
    """Return the state to begin with, the digests of its texts and bytes, and the texts that follow."""
    digests, texts = Digests(), read()
    if found.format == FORMAT and not found.texts:
        return new, digests, texts
    why = difference(found, new, os.fstat(file.fileno()).st_size)
    if why is None:
        add_texts(digests.texts, islice(texts, found.texts))
        if digests.texts.hexdigest() == found.sha256:
            add_content(digests.content, file, start, found.size)
            if digests.content.hexdigest() != found.content_sha256:
                raise DataError(
                    f"{partial_of(path)}: damaged: its bytes are not those of the interrupted run; "
                    "begin anew with --restart"
                )
            say(f"going on after {found.texts:,} texts, whose vectors an interrupted run left in {partial_of(path)}")
            return found, digests, texts
        why = "the texts are others"
    _say_unused(path, why, say)
    return new, Digests(), read()


def _say_unused(path: Path, why: str, say: Say) -> None:
    say(f"{partial_of(path)} is not used, and embedding begins anew: {why}")


def _can_lock(path: Path) -> bool:
    with hidden_file(path, ELSEWHERE) as (file, _):
        return lock_descriptor(file.fileno())


@contextmanager
def _locked(path: Path, restart: bool) -> Iterator[tuple[BinaryIO, State]]:
    """Open and lock FILE.partial, and read its state; a new one with `restart`, or for a file that is new."""
    partial = partial_of(path)
    while True:
        if read_state(path, restart) is None:
            write_state(path, State.new({}))  # FILE.partial is never without its state
        with os.fdopen(open_partial(path), "r+b") as file:
            if not _lock(file):
                raise UsageError(f"'{partial}' is being written by another process; wait for it, or name another --out")
            if _is_open_file(partial, file):  # its last owner may have renamed it before it was locked
                yield file, read_state(path, restart) or State.new({})
                return


def _lock(file: BinaryIO) -> bool:
    with suppress(BlockingIOError):
        return lock_descriptor(file.fileno())
    return False


def _is_open_file(path: Path, file: BinaryIO) -> bool:
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())
