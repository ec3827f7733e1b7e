"""Stream, count and hash the sentences that a whitening is fitted on."""

from collections.abc import Iterator
from pathlib import Path

from whiten_runtime.bundle.hashing import SentenceDigest
from whiten_runtime.bundle.manifest import CorpusRecord
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.builtin import BUILTIN_CORPUS, builtin_sentences, is_builtin
from whiten_runtime.files.texts import read_texts

__all__ = ["BUILTIN_CORPUS", "Corpus"]


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
        records = []
        limit = self._limit
        total = 1 if limit is None else self._all()
        index = 0
        for source in self._sources:
            digest, count = SentenceDigest(), 0
            for sentence in self._sentences(source):
                kept = limit is None or index * limit % total < limit
                index += 1
                if kept:
                    digest.add(sentence)
                    count += 1
                    yield sentence
            records.append(CorpusRecord(name=_display_name(source), sha256=digest.hexdigest(), sentences=count))
        if limit is not None and index != total:
            raise DataError(f"the corpus changed from {total:,} to {index:,} sentences while it was read; begin again")
        self.records = tuple(record for record in records if record.sentences)

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
