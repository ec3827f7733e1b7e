"""Stream, count and hash the sentences that a whitening is fitted on; read the built-in corpus."""

import gzip
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

from whiten_runtime.bundle.files import SentenceDigest
from whiten_runtime.bundle.manifest import CorpusRecord
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.rows import place_name, read_rows, read_texts

BUILTIN_CORPUS = "builtin:english-1"
"""Name of the built-in corpus. Its sentences never change: a better one gets a new name."""

BUILTIN_FILE = "english-1.txt.gz"
"""File of the built-in corpus in this package: a kind of text, a tab and a sentence in each line, kinds mixed."""

_PREFIX = "builtin:"

_NUMBER = re.compile(r"\d+")


def is_builtin(source: str) -> bool:
    if source.startswith(_PREFIX) and source != BUILTIN_CORPUS:
        raise UsageError(f"there is no corpus '{source}'; the built-in one is {BUILTIN_CORPUS}, others are files")
    return source == BUILTIN_CORPUS


@cache
def builtin_sentences() -> tuple[tuple[str, str], ...]:
    content = gzip.decompress((files(__package__) / BUILTIN_FILE).read_bytes()).decode("utf-8")
    sentences = []
    for line in content.splitlines():
        kind, _, sentence = line.partition("\t")
        sentences.append((kind, sentence))
    return tuple(sentences)


class Corpus:
    """Yields sentences from several sources in order, read anew at each pass.

    Args:
        sources: files, or `BUILTIN_CORPUS`.
        column: column or key of the text in the files.
        limit: maximum number of sentences to use. They are spread evenly over all sources, so that each source and
            each part of it keeps its share.

    Attributes:
        records: name, SHA-256 and number of sentences of each source; empty before the first complete pass.
    """

    def __init__(self, sources: tuple[str, ...], column: str | None, limit: int | None) -> None:
        self._sources = sources
        self._column = column
        self._limit = limit
        self._total: int | None = None
        self.records: tuple[CorpusRecord, ...] = ()

    def count(self) -> int:
        """Count the sentences of a pass. This reads all sources once, so that mistakes are found before the work.

        Raises:
            UsageError: a file or column does not exist.
            DataError: a source cannot be read or holds no sentence.
        """
        for source in self._sources:
            if source == "-":
                raise UsageError("the corpus cannot come from standard input; name a file")
            if next(self._sentences(source), None) is None:
                raise DataError(f"corpus '{source}' holds no sentence; give a file with text in it")
        total = self._all()
        return total if self._limit is None else min(total, self._limit)

    def __iter__(self) -> Iterator[str]:
        """Yield the sentences; skip lines that are empty or blank.

        Raises:
            DataError: with a limit, the number of all sentences is not what it was when they were counted.
        """
        limit, index, records = self._limit, 0, list[CorpusRecord]()
        for source in self._sources:
            digest, first = SentenceDigest(), index
            for sentence in self._sentences(source):
                if limit is None or index * limit % self._all() < limit:
                    digest.add(sentence)
                    yield sentence
                index += 1
            if used := digest.count:
                available = None if used == index - first else index - first
                name, sha256 = _display_name(source), digest.hexdigest()
                records.append(CorpusRecord(name=name, sha256=sha256, sentences=used, available=available))
        if limit is not None and index != (total := self._all()):
            raise DataError(f"the corpus changed from {total:,} to {index:,} sentences while it was read; begin again")
        self.records = tuple(records)

    def count_different(self, most: int) -> tuple[int, int]:
        """Return how many sentences differ, and how many do if all numbers are taken as one; each at most `most`.

        Lines of a log, or of a table, may be many and say little: they repeat, or differ only in a number.
        """
        texts, patterns = set[int](), set[int]()
        for sentence in self:
            if len(texts) < most:
                texts.add(hash(sentence))
            patterns.add(hash(_NUMBER.sub("0", sentence)))
            if len(patterns) == most:
                break
        return len(texts), len(patterns)

    def place_of(self, sentence: str) -> str:
        """Return the source and line of a sentence, the first of those that are equal."""
        for source in self._sources:
            if is_builtin(source):
                continue
            for row, text in read_rows(source, self._column):
                if text == sentence:
                    return place_name(source, row)
        return BUILTIN_CORPUS

    def _all(self) -> int:
        """Return the number of sentences of all sources."""
        if self._total is None:
            self._total = sum(1 for source in self._sources for _ in self._sentences(source))
        return self._total

    def _sentences(self, source: str) -> Iterator[str]:
        if is_builtin(source):
            return (sentence for _, sentence in builtin_sentences())
        return (text for text in read_texts(source, self._column) if text.strip())


def _display_name(source: str) -> str:
    return source if is_builtin(source) else Path(source).name
