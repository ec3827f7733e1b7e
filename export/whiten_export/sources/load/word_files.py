"""Read files of word vectors."""

import gzip
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import DataError

_FORMAT = "wanted GloVe's text format"

_SAMPLE = 101
"""Number of lines by which the width of a file without a header is known: the first, and a hundred behind it."""


@dataclass(frozen=True)
class Words:
    """Words and their vectors, most frequent first."""

    words: tuple[str, ...]  # n distinct words; the reserved ones come first
    vectors: NDArray[np.float32]  # float32 [n, d]; zeros for reserved words


def read_words(path: Path, reserved: tuple[str, ...] = ()) -> Words:
    """Read a .txt or .vec file, also inside .gz or .zip, without repeated words. Blanks or tabs are between fields.

    A first line "n d" is a header: n lines with d numbers each follow. A word may contain blanks, as a few of GloVe's
    and of fastText's do; the last d fields of a line are its numbers.

    Raises:
        DataError: a line is not a word with d numbers, or there are not n of them.
    """
    words = dict.fromkeys(reserved)
    rows = bytearray()  # grows in place, because files have gigabytes
    with _opened(path) as stream:
        lines = _lines(stream, path)
        first = list(islice(lines, _SAMPLE))
        header = _header(first[0]) if first else None
        count, width = header or (None, _usual_width(first, path))
        skipped = 0 if header is None else 1
        number = skipped
        for number, line in enumerate(chain(first[skipped:], lines), skipped + 1):
            if count is not None and number > count + 1:
                raise DataError(f"{path}: line {number} is one too many: line 1 says {count:,} words; correct line 1")
            word, vector = _entry(line, width)
            if not word or not np.isfinite(vector).all():
                said = "" if header is None else ", as line 1 says"
                raise DataError(f"{path}: line {number} is not a word with {width} numbers{said}; {_FORMAT}")
            if not rows:
                rows.extend(bytes(len(reserved) * vector.nbytes))
            if word not in words:
                words[word] = None
                rows.extend(vector.tobytes())
    if len(words) == len(reserved):
        raise DataError(f"{path}: holds no word; {_FORMAT}")
    if count is not None and number < count + 1:
        raise DataError(
            f"{path}: ends with line {number}, but line 1 says {count:,} words; copy the file again, or correct line 1"
        )
    return Words(tuple(words), np.frombuffer(rows, np.float32).reshape(len(words), width))


def _header(line: str) -> tuple[int, int] | None:
    """Return the number of words and of numbers that a line "n d" states; None for another line."""
    fields = line.split()
    if len(fields) != 2 or not all(field.isascii() and field.isdecimal() for field in fields):
        return None
    return int(fields[0]), int(fields[1])


def _usual_width(lines: list[str], path: Path) -> int:
    """Return how many numbers most lines have: the first may be damaged, or its word may contain blanks."""
    widths = [line.count(" ") for line in lines]
    if not widths:
        raise DataError(f"{path}: holds no word; {_FORMAT}")
    ((width, times),) = Counter(widths).most_common(1)
    if 2 * times <= len(lines):
        other = next(number for number, count in enumerate(widths) if count != widths[0])
        raise DataError(
            f"{path}: the number of values is {widths[0]} in line 1 and {widths[other]} in line {other + 1}; wanted as "
            'many in each, or a first line "WORDS NUMBERS" that says how many'
        )
    return width


def _entry(line: str, width: int) -> tuple[str, NDArray[np.float32]]:
    """Return the word of a line, and its vector [width]; an empty word for a line that has no such numbers."""
    fields = line.split(" ")
    try:
        vector = np.array(fields[len(fields) - width :], np.float32)
    except ValueError:
        return "", np.empty(0, np.float32)
    has_word = 0 < width < len(fields)
    return " ".join(fields[:-width]) if has_word else "", vector


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(path) as archive:
                texts = [item for item in archive.infolist() if item.filename.endswith((".txt", ".vec"))]
                if not texts:
                    raise DataError(
                        f"{path}: holds no word vectors (.txt, .vec); if it is a model, unpack it and name its folder"
                    )
                if len(texts) > 1:
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
    """Yield the lines of a file, without a byte order mark at its beginning, with blanks for tabs, and none at ends."""
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            yield text.replace("\t", " ").rstrip(" \r\n")
        except UnicodeDecodeError:
            raise DataError(f"{path}: line {number} is not UTF-8; {_FORMAT}") from None
