"""Compute the SHA-256 of files and of sentences."""

import hashlib
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path

_PIECE = 1 << 20


def sha256_of(files: Iterable[Path]) -> str:
    """Return the SHA-256 over the content of files, one after the other, read in pieces of 1 MiB."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while piece := stream.read(_PIECE):
                digest.update(piece)
    return digest.hexdigest()


def sha256_of_open(file: BufferedReader) -> str:
    """Return the SHA-256 over the content of an open file, from its beginning."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


class SentenceDigest:
    """Computes the SHA-256 of sentences, each followed by a newline, as UTF-8, while they arrive."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, sentence: str) -> None:
        """Add a sentence to the hash."""
        self._digest.update(sentence.encode("utf-8", "surrogatepass") + b"\n")

    def hexdigest(self) -> str:
        """Return the hash of the sentences so far."""
        return self._digest.hexdigest()
