"""Fitting a whitening: sentences through the unwhitened graph into moments."""

from collections.abc import Callable, Iterable
from itertools import islice

import numpy as np

from whiten_export.whitening import Moments
from whiten_runtime.engine import Engine
from whiten_runtime.errors import DataError
from whiten_runtime.tokenizer import Tokenizer

_WINDOW = 4096
"""Sentences whose vectors enter the moments together, so that the result does not depend on how they were batched."""


def fit_moments(
    sentences: Iterable[str],
    tokenizer: Tokenizer,
    engine: Engine,
    width: int,
    advance: Callable[[int], object],
) -> Moments:
    """Moments of the sentences' unwhitened vectors, in memory that does not grow with their number.

    Args:
        sentences: read once.
        tokenizer: cuts sentences that are too long.
        engine: computes float32 [n, width].
        width: d.
        advance: told how many sentences were embedded since it was last called.

    Raises:
        DataError: a vector is not finite; the message has its sentence.
    """
    moments = Moments.empty(width)
    stream = iter(sentences)
    while window := list(islice(stream, _WINDOW)):
        ids = [tokenizer.cut(row) for row in tokenizer.tokenize(window)]
        vectors = np.empty((len(window), width), np.float32)
        for group, rows in engine.run(ids):
            vectors[group] = rows
            advance(len(group))
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            index = int(finite.argmin())
            raise DataError(
                f"sentence {moments.n + index + 1} of the corpus has a vector that is not finite: "
                f"{window[index][:80]!r}; leave it out, or check the model"
            )
        moments = moments.merge(Moments.of(vectors))
    return moments
