"""Read word vectors in the text format of GloVe, word2vec and fastText: one word and its numbers per line."""

import gzip
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import DataError, UsageError


@dataclass(frozen=True)
class Words:
    """Holds words and their vectors, most frequent first."""

    words: tuple[str, ...]  # n distinct words; the reserved ones come first
    vectors: NDArray[np.float32]  # float32 [n, d]; zeros for reserved words


def read_words(path: Path, limit: int | None, reserved: tuple[str, ...] = ()) -> Words:
    """Read a .txt or .vec file, also inside .gz or .zip; skip a first line "n d" and repeated words."""
    words = dict.fromkeys(reserved)
    rows = bytearray()  # grows in place, because files have gigabytes
    width = 0
    with _opened(path) as stream:
        for number, line in enumerate(_lines(stream, path), 1):
            fields = line.split(" ")
            if number == 1 and len(fields) == 2 and all(field.isdecimal() for field in fields):
                continue
            width = width or len(fields) - 1
            word = " ".join(fields[:-width])  # GloVe has a few words with spaces
            try:
                vector = np.array(fields[-width:], np.float32)
            except ValueError:
                vector = np.empty(0, np.float32)
            if not word or "\t" in line or len(vector) != width or not np.isfinite(vector).all() or not width:
                raise DataError(f"{path}: line {number} is not a word with {width} numbers; wanted GloVe's text format")
            if not rows:
                rows.extend(bytes(len(reserved) * vector.nbytes))
            if word not in words:
                words[word] = None
                rows.extend(vector.tobytes())
            if limit is not None and len(words) == limit + len(reserved):
                break
    if len(words) == len(reserved):
        raise DataError(f"{path}: holds no word; wanted GloVe's text format")
    return Words(tuple(words), np.frombuffer(rows, np.float32).reshape(len(words), width))


def read_frequencies(path: Path) -> dict[str, int]:
    """Read "word count" lines, the format of the SIF paper's frequency lists."""
    if not path.is_file():
        raise UsageError(f"'{path}' does not exist; wanted a file of words and their counts")
    counts = {}
    with _opened(path) as stream:
        for number, line in enumerate(_lines(stream, path), 1):
            word, _, count = line.rpartition(" ")
            if not word or not count.isdecimal():
                raise DataError(f"{path}: line {number} is not a word with a count")
            counts[word] = int(count)
    if not sum(counts.values()):
        raise DataError(f"{path}: holds no word that occurs")
    return counts


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(path) as archive:
                texts = [item for item in archive.infolist() if item.filename.endswith((".txt", ".vec"))]
                if len(texts) != 1:
                    raise DataError(f"{path}: holds {len(texts)} text files; wanted one: unpack the one that you want")
                with archive.open(texts[0]) as stream:
                    yield stream  # type: ignore[misc]
        elif path.suffix.lower() == ".gz":
            with gzip.open(path) as stream:
                yield stream  # type: ignore[misc]
        else:
            with path.open("rb") as stream:
                yield stream
    except (zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{path}: not a complete archive ({error})") from None


def _lines(stream: BinaryIO, path: Path) -> Iterator[str]:
    for number, line in enumerate(stream, 1):
        try:
            yield line.decode("utf-8").rstrip(" \r\n")
        except UnicodeDecodeError:
            raise DataError(f"{path}: line {number} is not UTF-8; wanted GloVe's text format") from None
