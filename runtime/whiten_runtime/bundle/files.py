"""Read, hash and name the files of a bundle: only regular files, and none that is larger than such a file can be."""

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from whiten_runtime.errors import BundleError

MANIFEST_BYTES = 16 << 20
"""Largest manifest. Ours are 6 KB; prompts, and the names of a corpus's files, may make it longer."""

GRAPH_BYTES = (1 << 31) - 1
"""Largest graph, without the weights beside it: what protobuf allows."""

Identity = tuple[int, int, int, int, int]
"""Device, inode, size, and times of the last write and of the last change of a file.

The last one tells files apart that have one time of writing, such as those of archives, and one inode after another.
"""


def identity_of(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@contextmanager
def opened(path: Path, most: int | None = None) -> Iterator[BufferedReader]:
    """Open a regular file, or a link to one, for reading; a pipe or a device is refused without opening it."""
    try:
        status = path.stat()
    except ValueError as error:  # NUL in the path
        raise BundleError(f"{path}: no file has such a name ({error}); check the path") from None
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if path.is_dir() else "a pipe, a socket or a device"
        raise BundleError(f"{path}: {kind}, where a bundle has a regular file or a link to one; copy the bundle again")
    if most is not None and status.st_size > most:
        raise BundleError(
            f"{path}: {status.st_size:,} bytes; a bundle's {path.name} has {most:,} at most: copy the bundle again"
        )
    with path.open("rb") as file:
        yield file


@dataclass
class CheckedFile:
    """A file whose bytes were checked. Its identity tells at once that it is still the same; else its bytes decide."""

    path: Path
    identity: Identity  # before the check
    sha256: str | None  # of its bytes; None where only the identity is known
    _other: Identity | None = None  # an identity whose bytes were others

    @classmethod
    def now(cls, path: Path, sha256: str | None = None) -> "CheckedFile":
        return cls(path, identity_of(path.stat()), sha256)

    @property
    def bytes(self) -> int:
        return self.identity[2]

    def is_unchanged(self) -> bool:
        try:
            if identity_of(self.path.stat()) == self.identity:
                return True
            with opened(self.path) as file:
                return self.has_bytes_of(file)
        except (OSError, BundleError):
            return False

    def has_bytes_of(self, file: BufferedReader) -> bool:
        identity = identity_of(os.fstat(file.fileno()))
        if identity not in (self.identity, self._other):
            if self.sha256 is not None and identity[2] == self.bytes and sha256_of_open(file) == self.sha256:
                self.identity = identity
            else:
                self._other = identity
            file.seek(0)
        return identity == self.identity


def read_file(path: Path, most: int) -> bytes:
    with opened(path, most) as file:
        return file.read(most)


def sha256_of(files: Iterable[Path]) -> str:
    """Return the SHA-256 over the content of files, one after the other."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()


def sha256_of_open(file: BufferedReader) -> str:
    """Return the SHA-256 over the content of an open file, from its beginning."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


class SentenceDigest:
    """Computes the SHA-256 of sentences, each followed by a newline, as UTF-8, while they arrive."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.count = 0

    def add(self, sentence: str) -> None:
        self.count += 1
        self._digest.update(sentence.encode("utf-8", "surrogatepass") + b"\n")

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


HASH_FIELD = "manifest_sha256"

_DIGITS = 64
_PLACE = re.compile(rb'"%b"\s*:\s*"([0-9a-f]{%d})"' % (HASH_FIELD.encode(), _DIGITS))


def own_hash(content: bytes) -> str | None:
    """Return the SHA-256 of a manifest's bytes in which the digits of its first `manifest_sha256` are zeros.

    None if there is no such field of 64 lower-case hexadecimal digits.
    """
    place = _PLACE.search(content)
    if place is None:
        return None
    zeroed = _with_digits(content, place, "0" * _DIGITS)
    return hashlib.sha256(zeroed).hexdigest()


def with_hash_field(content: bytes) -> bytes:
    """Return a manifest's bytes with their own hash as its second field; the first is on a line of its own."""
    first, rest = content.split(b",\n", 1)
    return with_own_hash(first + f',\n  "{HASH_FIELD}": "{"0" * _DIGITS}",\n'.encode() + rest)


def with_own_hash(content: bytes) -> bytes:
    """Return a manifest's bytes with their own hash in the place of the first `manifest_sha256`'s 64 digits."""
    place, digits = _PLACE.search(content), own_hash(content)
    if place is None or digits is None:
        raise ValueError(f"no {HASH_FIELD} of {_DIGITS} hexadecimal digits")
    return _with_digits(content, place, digits)


def _with_digits(content: bytes, place: re.Match[bytes], digits: str) -> bytes:
    return content[: place.start(1)] + digits.encode() + content[place.end(1) :]
