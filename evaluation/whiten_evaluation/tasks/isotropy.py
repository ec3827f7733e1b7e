"""Measure isotropy of texts' vectors before whitening, after a bundle's own, and after others fitted on the texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whiten_evaluation.embedding import TextVectors, whitened
from whiten_runtime.bundle.manifest import IsotropyRecord
from whiten_runtime.inference.vectors import unit
from whiten_whitening.isotropy import average_cosine, iso_score, partition_score
from whiten_whitening.maps import Method, WhiteningSpec
from whiten_whitening.moments import Float64Array, Moments

CLOUD_POINTS = 1000
"""Largest number of vectors in a picture of the cloud."""


@dataclass(frozen=True)
class Measured:
    """Holds the isotropy of one set of vectors.

    Attributes:
        name: "before", "after" (the bundle's own whitening), or the method of a whitening that was fitted on the texts.
        dimension: number of coordinates of a vector.
        record: measures of isotropy.
        cloud: coordinates of `CLOUD_POINTS` vectors at most, in the plane that `cloud` chooses, [m, 2].
    """

    name: str
    dimension: int
    record: IsotropyRecord
    cloud: Float64Array


def measure(name: str, vectors: NDArray[np.floating]) -> Measured:
    """Measure the isotropy of vectors, [n, d]: three scores, and the cloud in two dimensions.

    The partition score is of unit vectors.
    """
    moments = Moments.of(vectors)
    record = IsotropyRecord(
        iso_score=iso_score(moments.covariance),
        average_cosine=average_cosine(moments),
        partition_score=partition_score(unit(vectors)),
    )
    return Measured(name, vectors.shape[1], record, cloud(vectors, moments))


def cloud(vectors: NDArray[np.floating], moments: Moments, most: int = CLOUD_POINTS) -> Float64Array:
    """Return the coordinates of evenly spaced vectors along the two axes of the largest second moment, [m, 2].

    The moment is about the origin: if all vectors point in a similar direction, the first axis is that direction, and
    the cloud lies far from the origin. The mean's coordinates are not negative. The second coordinate of
    one-dimensional vectors is 0.

    Args:
        vectors: vectors, [n, d].
        moments: their moments.
        most: largest number of vectors.
    """
    basis = moments.common_components(min(2, vectors.shape[1]))
    basis = basis * np.where(moments.mean @ basis < 0, -1, 1)
    rows = vectors[np.linspace(0, len(vectors) - 1, min(most, len(vectors))).astype(np.intp)]
    found = np.zeros((len(rows), 2))
    found[:, : basis.shape[1]] = rows.astype(np.float64) @ basis
    return found


def specs(methods: Sequence[Method], dimension: int | None, beta: float, shrinkage: str | float) -> list[WhiteningSpec]:
    """Return the whitenings of several methods, each once.

    Raises:
        UsageError: a number is out of range, or a dimension is kept of a method whose columns are not nested.
    """
    return [WhiteningSpec(method, dimension, beta, shrinkage) for method in dict.fromkeys(methods)]


def measure_fitted(vectors: TextVectors, specs: Sequence[WhiteningSpec]) -> Iterator[Measured]:
    """Yield the isotropy after each whitening, fitted on all texts, each counted once.

    Args:
        vectors: vectors of the texts before whitening.
        specs: whitenings to fit.

    Raises:
        UsageError: too few texts for the dimensions, or all texts have the same vector.
    """
    texts = list(vectors.rows)
    for spec in specs:
        fitted = vectors.fit(texts, spec, "the texts")
        yield measure(spec.method, whitened(vectors.of(texts), fitted))
