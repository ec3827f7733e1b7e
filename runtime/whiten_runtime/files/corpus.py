"""Stream, count and hash the sentences that a whitening is fitted on."""

import ast
import functools
import itertools
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from whiten_runtime.bundle.hashing import SentenceDigest
from whiten_runtime.bundle.manifest import CorpusRecord
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.texts import read_texts
from whiten_runtime.ort.process import ForkSafeLock, after_fork_in_child

BUILTIN_CORPUS = "builtin:python-docs"
"""Name of the corpus that comes with Python: the docstrings of its standard library."""

_SKIPPED_FOLDERS = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip")
)
_MARKUP = (">>>", "...", ":", "+", "-", "*", "|", "=")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")


class Corpus:
    """Yields sentences from several sources in order, read anew at each pass.

    Args:
        sources: files, or `BUILTIN_CORPUS`.
        column: column or key of the text in the files.
        limit: maximum number of sentences to use, the first ones.

    Attributes:
        records: name, SHA-256 and number of sentences of each source; empty before the first complete pass.
    """

    def __init__(self, sources: tuple[str, ...], column: str | None, limit: int | None) -> None:
        self._sources = sources
        self._column = column
        self._limit = limit
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
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[str]:
        """Yield the sentences; skip lines that are empty or blank."""
        records = []
        left = self._limit
        for source in self._sources:
            digest, count = SentenceDigest(), 0
            for sentence in islice(self._sentences(source), left):
                digest.add(sentence)
                count += 1
                yield sentence
            if left is not None:
                left -= count
            records.append(CorpusRecord(name=_display_name(source), sha256=digest.hexdigest(), sentences=count))
        self.records = tuple(record for record in records if record.sentences)

    def _sentences(self, source: str) -> Iterator[str]:
        if source == BUILTIN_CORPUS:
            return iter(_python_docs())
        return (text for text in read_texts(source, self._column) if text.strip())


def _display_name(source: str) -> str:
    if source == BUILTIN_CORPUS:
        return f"{source} ({sys.implementation.name} {'.'.join(map(str, sys.version_info[:3]))})"
    return Path(source).name


class _Remembered:
    """Yields what an iterator yields, and keeps it: each iteration begins with what earlier ones have read.

    Args:
        read: gives a new iterator, which always yields the same.
    """

    def __init__(self, read: Callable[[], Iterator[str]]) -> None:
        self._read = read
        self._source = read()
        self._found: list[str] = []
        self._whole = False
        self._lock = ForkSafeLock()
        after_fork_in_child(self._begin_again)

    def __iter__(self) -> Iterator[str]:
        for index in itertools.count():
            with self._lock:
                if index == len(self._found) and not self._whole:
                    self._read_one()
            if index == len(self._found):
                return
            yield self._found[index]

    def _read_one(self) -> None:
        try:
            self._found.append(next(self._source))
        except StopIteration:
            self._whole = True
        except BaseException:  # an iterator that has raised gives nothing more, which is not its end
            self._begin_again()
            raise

    def _begin_again(self) -> None:
        """Replace the iterator by one that goes on after what was found."""
        self._source = itertools.islice(self._read(), len(self._found), None)


@functools.cache
def _python_docs() -> _Remembered:
    return _Remembered(_read_python_docs)


def _read_python_docs() -> Iterator[str]:
    """Yield distinct sentences from the docstrings of Python's standard library, in the order of its files.

    Raises:
        DataError: there are none.
    """
    root = Path(sysconfig.get_path("stdlib"))
    seen: set[str] = set()
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        if _SKIPPED_FOLDERS & set(path.relative_to(root).parts[:-1]):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for sentence in _prose(ast.get_docstring(node) or ""):
                    if sentence not in seen:
                        seen.add(sentence)
                        yield sentence
    if not seen:
        raise DataError(f"{root} holds no source files, so there is no built-in corpus; give one with --corpus FILE")


def _prose(docstring: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", docstring):
        lines = (line for line in paragraph.splitlines() if not line.lstrip().startswith(_MARKUP))
        for sentence in _SENTENCE_END.split(" ".join(" ".join(lines).split())):
            letters = sum(character.isalpha() for character in sentence)
            if 4 <= len(sentence.split()) <= 60 and letters >= 0.6 * len(sentence):
                yield sentence
