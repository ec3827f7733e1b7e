"""Normalise and compare vectors: float32 of any size, from the smallest denormal to the largest number."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.manifest import Similarity
from whiten_runtime.errors import TextError, UsageError

_AT_ONCE = 1 << 22
"""Numbers of the differences that a distance holds in memory at once."""

_SAFE_NORMS = (1e-12, 1e18)
"""Norms between which products of float32 vectors neither overflow nor lose digits to denormal numbers."""

_SAFE_SQUARES = (1e-24, 1e36)
"""Squares of the same norms."""


def rows_of(name: str, vectors: ArrayLike) -> NDArray[np.float32]:
    """Return vectors as float32, [n, k] or [k].

    Args:
        name: name of the argument, for the message.
        vectors: an array, a list of rows, or a tensor on the CPU.

    Raises:
        TextError: they are not numbers in rows of equal length.
    """
    try:
        with np.errstate(over="ignore"):  # a value that is too large becomes infinite, and is refused
            return np.asarray(vectors, np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise TextError(f"{name} are not numbers in rows of equal length ({error})") from None


def check_finite(name: str, rows: NDArray[np.float32]) -> None:
    """Check that no row of [n, k] holds an infinite number or NaN.

    Raises:
        TextError: one does; the message has the first index.
    """
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise TextError(f"{name}[{int(finite.argmin())}] is not finite; leave it out")


def comparable(a: ArrayLike, b: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return two sets of vectors as float32 [n, k] and [m, k]; a single vector is a set of one.

    Raises:
        UsageError: they have different numbers of dimensions, or are no rows.
        TextError: they are not numbers, or not finite.
    """
    first, second = (np.atleast_2d(rows_of(name, vectors)) for name, vectors in (("a", a), ("b", b)))
    for name, rows in (("a", first), ("b", second)):
        if rows.ndim != 2:
            raise UsageError(f"{name} has shape {rows.shape}; wanted [n, k] or [k]")
    if first.shape[1] != second.shape[1]:
        raise UsageError(
            f"vectors of {first.shape[1]} and {second.shape[1]} dimensions cannot be compared; "
            "embed both with the same bundle and truncate_dim"
        )
    check_finite("a", first)
    check_finite("b", second)
    return first, second


def norms(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the L2 norm of each row, float64 [n]: no square of a float32 number overflows or vanishes there."""
    squares: NDArray[np.float64] = np.einsum("nk,nk->n", vectors, vectors, dtype=np.float64)
    return np.sqrt(squares)


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Divide each row by its L2 norm; rows of zeros stay, and rows with an infinite number or NaN become NaN."""
    with np.errstate(over="ignore"):
        squares = np.add.reduce(np.square(vectors), axis=1)
    if _SAFE_SQUARES[0] <= squares.min(initial=1) and squares.max(initial=1) <= _SAFE_SQUARES[1]:
        quotients: NDArray[np.float32] = vectors / np.sqrt(squares)[:, None]
        return quotients
    lengths = norms(vectors)[:, None]
    lengths[lengths == 0] = 1
    lengths[np.isinf(lengths)] = np.nan
    return np.divide(vectors, lengths, out=np.empty(vectors.shape, np.float32), casting="same_kind")


def row_cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the cosine of each row with the same row of the other, both [n, k]: float32 [n], 0 for rows of zeros."""
    cosines: NDArray[np.float32] = np.einsum("nk,nk->n", unit(first), unit(second))
    return cosines


def row_similarities(
    first: NDArray[np.float32], second: NDArray[np.float32], similarity: Similarity
) -> NDArray[np.float32]:
    """Return the similarity of each row with the same row of the other, both [n, k]: float32 [n].

    Distances are negated, so that more is always nearer. A number that float32 cannot hold is infinite.
    """
    if similarity == "cosine":
        return row_cosines(first, second)
    with np.errstate(over="ignore", invalid="ignore"):
        if similarity == "dot":
            products: NDArray[np.float64] = np.einsum("nk,nk->n", first, second, dtype=np.float64)
            return products.astype(np.float32)
        step = max(1, _AT_ONCE // max(1, first.shape[1]))
        parts = [
            -_distances(first[start : start + step], second[start : start + step], similarity)
            for start in range(0, len(first), step)
        ]
        return np.concatenate([np.empty(0), *parts]).astype(np.float32)


def similarity_matrix(
    first: NDArray[np.float32], second: NDArray[np.float32], similarity: Similarity
) -> NDArray[np.float32]:
    """Return the similarity of every row with every other; distances are negated, so that more is always nearer.

    Args:
        first: shape [n, k].
        second: shape [m, k].
        similarity: function of two vectors.

    Returns:
        float32 [n, m]. A number that float32 cannot hold is infinite; rows that are not finite give NaN.
    """
    if similarity == "cosine":
        cosines: NDArray[np.float32] = unit(first) @ unit(second).T
        return cosines
    with np.errstate(over="ignore", invalid="ignore"):
        if similarity == "dot":
            return _dot_products(first, second)
        step = max(1, _AT_ONCE // max(1, second.size))
        parts = [
            -_distances(first[start : start + step, None], second[None], similarity)
            for start in range(0, len(first), step)
        ]
        return np.concatenate([np.empty((0, len(second))), *parts]).astype(np.float32)


def _dot_products(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return first secondᵀ, in float64 where sums in float32 could overflow before they cancel."""
    lengths = np.concatenate([norms(first), norms(second)])
    lengths = lengths[lengths != 0]
    if not len(lengths) or (_SAFE_NORMS[0] <= lengths.min() and lengths.max() <= _SAFE_NORMS[1]):
        products: NDArray[np.float32] = first @ second.T
        return products
    return (first.astype(np.float64) @ second.astype(np.float64).T).astype(np.float32)


def _distances(first: NDArray[np.float32], second: NDArray[np.float32], similarity: Similarity) -> NDArray[np.float64]:
    order = 2 if similarity == "euclidean" else 1
    return np.asarray(np.linalg.norm(np.subtract(first, second, dtype=np.float64), ord=order, axis=-1))
