"""Compute the statistics of a corpus: embed its sentences, and reduce windows of vectors to moments and a sample."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from whiten_export.corpus.statistics import Statistics
from whiten_runtime.bundle.hashing import SentenceDigest
from whiten_runtime.errors import DataError
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.inference.batching import WINDOW
from whiten_runtime.inference.embedder import Embedder
from whiten_whitening.moments import Float64Array, Moments
from whiten_whitening.sample import Keys, row_keys, text_keys

Advance = Callable[[int], object]
Window = tuple[Keys, NDArray[np.float32]]


def gather(windows: Iterable[Window], start: Statistics) -> Iterator[Statistics]:
    """Yield the statistics after each window of vectors, float32 [m, d], each with its sampling keys."""
    statistics = start
    for keys, vectors in windows:
        moments = statistics.moments.merge(Moments.of(vectors))
        statistics = Statistics(moments, statistics.sample.add(keys, vectors), statistics.corpus)
        yield statistics


def fit_corpus(corpus: Corpus, embedder: Embedder, value: str, advance: Advance = lambda count: None) -> Statistics:
    """Return the statistics of the sentences' vectors before whitening, in memory that does not grow with their number.

    Vectors enter in windows of fixed size: the result does not depend on how they were batched.
    """
    start = Statistics.empty(embedder.engine.width_of(value))
    found = deque(chain([start], gather(embed_windows(corpus, embedder, value, advance), start)), 1).pop()
    return Statistics(found.moments, found.sample, corpus.records)


def embed_windows(
    sentences: Iterable[str],
    embedder: Embedder,
    value: str,
    advance: Advance,
    done: int = 0,
    digest: SentenceDigest | None = None,
) -> Iterator[Window]:
    """Yield a value of the graph for windows of sentences, each with its sampling keys."""
    for texts, vectors in embedder.windows(sentences, embedder.whole(value), advance, WINDOW):
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            index = int(finite.argmin())
            raise DataError(
                f"sentence {done + index + 1} of the corpus has a vector that is not finite: "
                f"{texts[index][:80]!r}; leave it out, or check the model"
            )
        if digest is not None:
            for text in texts:
                digest.add(text)
        keys = text_keys(texts) ^ row_keys(done, len(texts))  # distinct keys for a sentence that occurs twice
        done += len(texts)
        yield keys, vectors


def embed_value(texts: Sequence[str], embedder: Embedder, value: str) -> Float64Array:
    """Return a value of the graph for each text, float64 [n, d]."""
    return embedder.embed(texts, embedder.whole(value)).astype(np.float64)


def fit_vectors(parts: Iterable[NDArray[np.float32]], advance: Advance = lambda count: None) -> Statistics | None:
    """Return the statistics of precomputed embeddings, float32 [m, d] at a time; None if there are none."""

    def windows(first: NDArray[np.float32], rest: Iterator[NDArray[np.float32]]) -> Iterator[Window]:
        start = 0
        for vectors in chain([first], rest):
            yield row_keys(start, len(vectors)), vectors
            start += len(vectors)
            advance(len(vectors))

    stream = iter(parts)
    first = next(stream, None)
    if first is None:
        return None
    return deque(gather(windows(first, stream), Statistics.empty(first.shape[1])), 1).pop()
