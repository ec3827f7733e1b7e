"""Compute the statistics of a corpus: embed its sentences, and reduce windows of vectors to moments and a sample."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from whiten_export.corpus.statistics import Progress, Statistics
from whiten_runtime.bundle.hashing import SentenceDigest
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.inference.batching import WINDOW
from whiten_runtime.inference.embedder import Embedder
from whiten_whitening.moments import Float64Array, Moments
from whiten_whitening.sample import Keys, row_keys, text_keys

Advance = Callable[[int], object]
Keep = Callable[[Statistics, Progress], object]
"""Function that receives the state of an unfinished fit after each window, and may save it."""

Window = tuple[Keys, NDArray[np.float32]]


def gather(windows: Iterable[Window], start: Statistics) -> Iterator[Statistics]:
    """Yield the statistics after each window of vectors, float32 [m, d], each with its sampling keys."""
    statistics = start
    for keys, vectors in windows:
        moments = statistics.moments.merge(Moments.of(vectors))
        statistics = Statistics(moments, statistics.sample.add(keys, vectors), statistics.corpus)
        yield statistics


def fit_corpus(
    corpus: Corpus,
    embedder: Embedder,
    value: str,
    advance: Advance = lambda count: None,
    resume: tuple[Statistics, Progress] | None = None,
    keep: Keep | None = None,
) -> Statistics:
    """Return the statistics of the sentences' vectors before whitening, in memory that does not grow with their number.

    Vectors enter in windows of fixed size: the result does not depend on how they were batched, nor on whether the fit
    was interrupted and resumed.

    Args:
        corpus: sentences, read once; sentences that are too long are truncated.
        embedder: embedder with the graph.
        value: name of the output that holds vectors before whitening.
        advance: function that receives the number of sentences done since its last call.
        resume: state of an interrupted fit of the same corpus.
        keep: function that receives the state after each window.

    Raises:
        DataError: a vector is not finite; the message has its sentence.
        UsageError: the corpus has changed since the fit was interrupted.
    """
    digest = SentenceDigest()
    sentences = iter(corpus)
    statistics = Statistics.empty(embedder.engine.width_of(value))
    if resume is not None:
        statistics, progress = resume
        for sentence in islice(sentences, progress.sentences):
            digest.add(sentence)
            advance(1)
        if digest.hexdigest() != progress.sha256:
            raise UsageError(
                f"the corpus is not the one whose first {progress.sentences:,} sentences were fitted before; name the "
                "same files, or begin anew with --restart"
            )
    found = statistics
    for found in gather(embed_windows(sentences, embedder, value, advance, statistics.moments.n, digest), statistics):
        if keep is not None:
            keep(found, Progress(sentences=found.moments.n, sha256=digest.hexdigest()))
    return Statistics(found.moments, found.sample, corpus.records)


def embed_windows(
    sentences: Iterable[str],
    embedder: Embedder,
    value: str,
    advance: Advance,
    done: int = 0,
    digest: SentenceDigest | None = None,
) -> Iterator[Window]:
    """Yield a value of the graph for windows of sentences, each with its sampling keys.

    Args:
        sentences: sentences of a corpus, or of a part of it.
        embedder: embedder with the graph.
        value: name of the output.
        advance: function that receives the number of sentences done since its last call.
        done: number of sentences of the corpus before these.
        digest: hash to which the sentences are added.

    Raises:
        DataError: a vector is not finite; the message has its sentence.
    """
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
