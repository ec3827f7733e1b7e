"""Make the file of the built-in corpus; the same sources and seed give the same bytes."""

import gzip
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.builtin_corpus.grammar import generate

SEED = 1
DOCSTRINGS, EXAMPLES = "docstring", "example"
SHARES: Mapping[str, int] = {
    DOCSTRINGS: 4000,
    EXAMPLES: 2000,
    "everyday": 6000,
    "headline": 450,
    "news": 450,
    "question": 450,
    "opinion": 450,
    "request": 450,
    "review": 450,
    "chat": 450,
    "fact": 450,
}
"""Number of sentences of each kind; `table.md` has the measurements that they were chosen by."""


def corpus_lines(docstrings: Iterable[str], examples: Iterable[str]) -> list[str]:
    """Return the lines of the corpus, a kind, a tab and a sentence each, in an order that mixes the kinds evenly."""
    given = {DOCSTRINGS: docstrings, EXAMPLES: examples}
    found = [(kind, sentence) for kind, texts in given.items() for sentence in _drawn(kind, list(texts), SHARES[kind])]
    found += generate(SEED, {kind: count for kind, count in SHARES.items() if kind not in given})
    distinct = dict.fromkeys(f"{kind}\t{sentence}" for kind, sentence in found)
    return sorted(distinct, key=lambda line: _place("order", line))


def compress(lines: Iterable[str]) -> bytes:
    """Return lines as gzip, without a time stamp."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
    return buffer.getvalue()


def _drawn(kind: str, sentences: Sequence[str], count: int) -> list[str]:
    """Return `count` sentences drawn without an order of their own."""
    if len(sentences) < count:
        raise ValueError(f"{len(sentences)} sentences of kind {kind}; wanted {count} or more")
    return sorted(sentences, key=lambda sentence: _place(kind, sentence))[:count]


def _place(purpose: str, text: str) -> bytes:
    return hashlib.blake2b(f"{purpose}\t{text}".encode(), digest_size=8).digest()
