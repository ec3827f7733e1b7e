"""Normalise and compare vectors."""

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.manifest import Similarity

_AT_ONCE = 1 << 22
"""Numbers of the differences that a distance holds in memory at once."""


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Divide each row by its L2 norm; rows of zeros stay."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, np.where(norms > 0, norms, 1), dtype=np.float32)


def row_cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the cosine of each row with the same row of the other, both [n, k]: float32 [n], 0 for rows of zeros."""
    cosines: NDArray[np.float32] = np.einsum("nk,nk->n", unit(first), unit(second))
    return cosines


def similarity_matrix(
    first: NDArray[np.float32], second: NDArray[np.float32], similarity: Similarity
) -> NDArray[np.float32]:
    """Return the similarity of every row with every other; distances are negated, so that more is always nearer.

    Args:
        first: shape [n, k].
        second: shape [m, k].
        similarity: function of two vectors.

    Returns:
        float32 [n, m].
    """
    if similarity in ("cosine", "dot"):
        rows, columns = (unit(first), unit(second)) if similarity == "cosine" else (first, second)
        scores: NDArray[np.float32] = rows @ columns.T
        return scores
    order = 2 if similarity == "euclidean" else 1
    step = max(1, _AT_ONCE // max(1, second.size))
    parts = [
        -np.linalg.norm(first[start : start + step, None] - second[None], ord=order, axis=2)
        for start in range(0, len(first), step)
    ]
    return np.concatenate([np.empty((0, len(second)), np.float32), *parts]).astype(np.float32)
