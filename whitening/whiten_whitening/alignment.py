"""Turn a new whitening onto an old one, so that vectors stored with the old one stay usable.

A rotation on the right of W leaves a whitening a whitening, and changes no cosine between two vectors of the same map.
The rotation is that of the orthogonal Procrustes problem (Schönemann, "A generalized solution of the orthogonal
Procrustes problem", 1966): with y = (x - μ) W and the old z = (x - μ₀) W₀, the orthogonal R that minimises Σ |y R - z|²
is U Vᵀ, where U S Vᵀ is the singular value decomposition of Σ yᵀ z.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import UsageError
from whiten_whitening.maps import WhiteningMap
from whiten_whitening.moments import Float64Array, Moments, svd
from whiten_whitening.similarity import cosines, unit

LEAST_RATIO = 2
"""Vectors per dimension below which the rotation is not determined well enough to be used."""

_EQUAL = 1e-9
"""Difference of cosines below which two texts count as equally near: a sample may hold a text twice."""

_ROWS_PER_BLOCK = 1024


@dataclass(frozen=True)
class Fidelity:
    """Measures how well vectors of a new map find those of an old one."""

    median_cosine: float  # median cosine of a text's vectors under both maps
    # share of texts whose new vector is nearest, by cosine, to their own old vector among all old ones
    self_recall: float
    sentences: int  # number of texts that this was measured on


def align(fitted: WhiteningMap, mean: Float64Array, weight: Float64Array, moments: Moments) -> WhiteningMap:
    """Rotate a map, y = (x - mean) W R, onto an old one of `mean` [d] and `weight` [d, k], on vectors of `moments`."""
    if weight.shape != fitted.weight.shape:
        raise UsageError(
            f"the old map goes from {weight.shape[0]} to {weight.shape[1]} dimensions, the new one from "
            f"{fitted.weight.shape[0]} to {fitted.weight.shape[1]}; wanted the same"
        )
    width = weight.shape[1]
    if moments.n < LEAST_RATIO * width:
        raise UsageError(
            f"{moments.n} sentences cannot align {width} dimensions; give {LEAST_RATIO * width} or more sentences"
        )
    second = moments.scatter / moments.n
    second = second + np.outer(moments.mean - fitted.mean, moments.mean - mean)
    left, _, right = svd(fitted.weight.T @ second @ weight)
    return replace(fitted, weight=np.ascontiguousarray(fitted.weight @ (left @ right)))


def fidelity(old: NDArray[np.floating], new: NDArray[np.floating]) -> Fidelity:
    """Measure how well the new vectors of texts find their old vectors, both [n, k]."""
    if len(old) < 2:
        raise UsageError(f"{len(old)} texts cannot show whether vectors are found again; give 2 or more")
    stored, asked = (unit(rows) for rows in (old, new))
    recalled = 0
    for start in range(0, len(asked), _ROWS_PER_BLOCK):
        similarities = asked[start : start + _ROWS_PER_BLOCK] @ stored.T
        own = similarities[np.arange(len(similarities)), np.arange(start, start + len(similarities))]
        recalled += int((own >= similarities.max(axis=1) - _EQUAL).sum())
    return Fidelity(float(np.median(cosines(stored, asked))), recalled / len(asked), len(asked))
