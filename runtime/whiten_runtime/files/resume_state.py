"""Read and write the state of an unfinished file of vectors: FILE.partial.json beside FILE.partial."""

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec

from whiten_runtime.errors import UsageError
from whiten_runtime.files.replacing import replace_file
from whiten_runtime.files.write_vectors import ELSEWHERE

FORMAT = 2

_PIECE = 1 << 20
_MOST, _LONGEST, _BEFORE = 3, 60, 20
"""Differences, and characters of a value and before what differs in it, that a message has at most."""

Count = Annotated[int, msgspec.Meta(ge=0)]


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Represents the content of FILE.partial.json."""

    format: int
    made_with: dict[str, str]
    """Says what the vectors depend on besides the texts: the bundle, options, versions, the machine."""
    texts: Count
    """Number of texts whose vectors are on disk."""
    size: Count
    """Number of bytes of FILE.partial that these take; what follows was not finished."""
    sha256: str
    """SHA-256 over these texts, each preceded by its number of bytes."""
    content_sha256: str
    """SHA-256 over these bytes, without those that `written_last` counts."""

    @classmethod
    def new(cls, made_with: Mapping[str, str], format: int = FORMAT) -> "State":
        """Return the state of a file without vectors."""
        nothing = hashlib.sha256().hexdigest()
        return cls(format=format, made_with=dict(made_with), texts=0, size=0, sha256=nothing, content_sha256=nothing)


@dataclass(frozen=True)
class Digests:
    """Holds the SHA-256 over the texts, and over the bytes of FILE.partial, while both arrive."""

    texts: Any = field(default_factory=hashlib.sha256)
    content: Any = field(default_factory=hashlib.sha256)


class HashedFile:
    """Writes to a file, and adds what is written to a SHA-256.

    Args:
        file: the file, at the place to write to.
        digest: the SHA-256.
        start: number of bytes at the beginning of the file that are left out of it.
    """

    def __init__(self, file: BinaryIO, digest: Any, start: int) -> None:
        self._file, self._digest, self._start, self._place = file, digest, start, file.tell()

    def write(self, content: Any) -> None:
        """Write bytes."""
        view = memoryview(content).cast("B")
        self._file.write(view)
        self._digest.update(view[max(self._start - self._place, 0) :])
        self._place += len(view)

    def writelines(self, lines: Iterable[bytes]) -> None:
        """Write bytes one after the other."""
        for line in lines:
            self.write(line)

    def seek(self, place: int) -> None:
        """Go to a place in the file."""
        self._place = self._file.seek(place)


class _AnyState(msgspec.Struct, frozen=True, kw_only=True):
    """Represents what the states of every format have."""

    format: int
    made_with: dict[str, Any]


def partial_of(path: Path) -> Path:
    """Return the file that holds the vectors of an unfinished run: FILE.partial, beside what a link leads to."""
    target = path.resolve()
    return target.with_name(f"{target.name}.partial")


def state_of(path: Path) -> Path:
    """Return the file that describes those vectors: FILE.partial.json."""
    target = path.resolve()
    return target.with_name(f"{target.name}.partial.json")


def check_regular(place: Path) -> None:
    """Check that there is a regular file, or nothing: what a link leads to is never written.

    Raises:
        UsageError: there is a link, a directory, a pipe or a device.
    """
    try:
        mode = place.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = "a link, " if stat.S_ISLNK(mode) else ""
        raise UsageError(f"'{place}' is {kind}not a regular file; move it away, or delete it")


def read_state(path: Path, restart: bool = False) -> State | None:
    """Read the state of an unfinished run; None if there is none.

    Of another format, it has no texts.

    Args:
        path: the file of vectors.
        restart: return a new state where it cannot be read, but is one of whiten.

    Raises:
        UsageError: one of the two files is not of whiten, or the state cannot be read.
    """
    partial, state = partial_of(path), state_of(path)
    check_regular(partial)
    check_regular(state)
    try:
        content = state.read_bytes()
    except FileNotFoundError:
        if not partial.exists():
            return None
        raise UsageError(f"'{partial}' exists, but not '{state}' beside it: move it away, or delete it") from None
    both = f"move it and '{partial}' away, or delete both" if partial.exists() else "move it away, or delete it"
    return _decoded(content, state, restart, both)


def _decoded(content: bytes, state: Path, restart: bool, advice: str) -> State:
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"'{state}' is not a state of whiten embed ({error}); {advice}") from None
    if not isinstance(document, dict) or "made_with" not in document:
        raise UsageError(f"'{state}' is not a state of whiten embed; {advice}")
    if restart:
        return State.new({})
    try:
        found = msgspec.convert(document, _AnyState)
        if found.format != FORMAT:
            return State.new({}, found.format)
        return msgspec.convert(document, State)
    except msgspec.ValidationError as error:
        raise UsageError(f"'{state}' cannot be read ({error}); begin anew with --restart") from None


def write_state(path: Path, state: State) -> None:
    """Write the state of an unfinished file of vectors.

    Raises:
        WhitenError: it cannot be written; the message names `path`.
    """
    replace_file(state_of(path), msgspec.json.encode(state) + b"\n", ELSEWHERE, path)


def difference(found: State, wanted: State, size: int) -> str | None:
    """Return in what an earlier run differs; None if this one can go on from its state.

    Args:
        found: state of the earlier run.
        wanted: new state of this run.
        size: number of bytes of FILE.partial.
    """
    if found.format != FORMAT:
        return f"its state has format {found.format}, but this version of whiten writes {FORMAT}"
    names = [*wanted.made_with, *(name for name in found.made_with if name not in wanted.made_with)]
    values = [(name, found.made_with.get(name, "none"), wanted.made_with.get(name, "none")) for name in names]
    if others := [f"{name}: {_change(old, new)}" for name, old, new in values if old != new]:
        more = f"; and {len(others) - _MOST} more" if len(others) > _MOST else ""
        return f"this run differs in {'; '.join(others[:_MOST])}{more}"
    if size < found.size:
        return f"it has {size:,} bytes; wanted {found.size:,}"
    return None


def _change(old: str, new: str) -> str:
    """Return two values, each cut to what is around the first character in which they differ."""
    places = (place for place, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1])
    start = max(next(places, min(len(old), len(new))) - _BEFORE, 0)
    return " -> ".join(_cut(value, start) for value in (old, new))


def _cut(value: str, start: int) -> str:
    start = start if len(value) > _LONGEST else 0
    end = start + _LONGEST
    return f"{'…' if start else ''}{value[start:end]}{'…' if end < len(value) else ''}"


def add_texts(digest: Any, texts: Iterable[str]) -> None:
    """Add texts to a SHA-256, each preceded by its number of bytes."""
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little") + content)


def add_content(digest: Any, file: BinaryIO, start: int, end: int) -> None:
    """Add the bytes of a file from `start` to `end` to a SHA-256."""
    file.seek(start)
    while start < end and (piece := file.read(min(end - start, _PIECE))):
        digest.update(piece)
        start += len(piece)


def open_partial(path: Path) -> int:
    """Open FILE.partial for reading and writing, and create it if there is none; return its descriptor.

    Raises:
        UsageError: it is not a regular file.
    """
    partial = partial_of(path)
    check_regular(partial)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"'{partial}' is not a regular file; move it away, or delete it")
    return descriptor
