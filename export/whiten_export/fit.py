"""Fitting a whitening: sentences through the unwhitened graph into moments."""

from collections.abc import Callable, Iterable

import numpy as np

from whiten_export.whitening import Moments
from whiten_runtime.embedder import Embedder, Output
from whiten_runtime.errors import DataError


def fit_moments(sentences: Iterable[str], embedder: Embedder, advance: Callable[[int], object]) -> Moments:
    """Moments of the sentences' unwhitened vectors, in memory that does not grow with their number.

    Vectors enter the moments in windows of fixed size, so that the result does not depend on how they were batched.

    Args:
        sentences: read once; those that are too long are cut.
        embedder: of the graph that gives unwhitened vectors.
        advance: told how many sentences were embedded since it was last called.

    Raises:
        DataError: a vector is not finite; the message has its sentence.
    """
    moments = Moments.empty(embedder.engine.width)
    for window, vectors in embedder.windows(sentences, Output(embedder.engine.width), advance):
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            index = int(finite.argmin())
            raise DataError(
                f"sentence {moments.n + index + 1} of the corpus has a vector that is not finite: "
                f"{window[index][:80]!r}; leave it out, or check the model"
            )
        moments = moments.merge(Moments.of(vectors))
    return moments
