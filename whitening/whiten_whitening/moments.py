"""Compute moments of vectors, streamed and merged in float64: the input of whitening, shrinkage, isotropy and drift.

Merging of mean and scatter: Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm" (1979), eq. 2.1. The
higher sums follow from Σ (z + e)(...) with Σ z = 0, where z is centred and e is the old centre minus the new one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_whitening.linalg import Float64Array, eigh

__all__ = ["Float64Array", "Moments"]

_ROWS_AT_ONCE = 1024
"""Rows that are copied to float64 at a time: the copy stays in the processor's cache."""


@dataclass(frozen=True)
class Moments:
    """Holds sums over n vectors x, exact to rounding however the vectors were split; z = x - mean.

    Merging in the same order gives the same bits.

    Attributes:
        n: number of vectors seen.
        mean: mean of the vectors, [d].
        scatter: Σ z zᵀ, [d, d].
        third: Σ |z|² z, [d]; NaN where it is not known.
        fourth: Σ |z|⁴; NaN where it is not known.
        directions: Σ x / |x| over the nonzero vectors, [d].
        nonzero: number of nonzero vectors.
    """

    n: int
    mean: Float64Array
    scatter: Float64Array
    third: Float64Array
    fourth: float
    directions: Float64Array
    nonzero: int

    @classmethod
    def empty(cls, width: int) -> "Moments":
        """Return the moments of no vectors of `width` coordinates."""
        nothing = np.zeros(width)
        return cls(0, nothing, np.zeros((width, width)), nothing, 0.0, nothing, 0)

    @classmethod
    def of(cls, vectors: ArrayLike) -> "Moments":
        """Return the moments of vectors [n, d]; finite numbers of any type."""
        table = np.asarray(vectors)
        width = table.shape[1]
        if not len(table):
            return cls.empty(width)
        mean = table.mean(axis=0, dtype=np.float64)
        scatter, third, directions = np.zeros((width, width)), np.zeros(width), np.zeros(width)
        fourth, nonzero = 0.0, 0
        for start in range(0, len(table), _ROWS_AT_ONCE):
            rows = table[start : start + _ROWS_AT_ONCE].astype(np.float64)
            norms = np.sqrt(np.einsum("nd,nd->n", rows, rows))
            directions += np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0) @ rows
            nonzero += int(np.count_nonzero(norms))
            rows -= mean
            squares = np.einsum("nd,nd->n", rows, rows)
            scatter += rows.T @ rows
            third += squares @ rows
            fourth += float(squares @ squares)
        return cls(len(table), mean, scatter, third, fourth, directions, nonzero)

    @classmethod
    def of_covariance(cls, n: int, mean: Float64Array, covariance: Float64Array) -> "Moments":
        """Return moments for the unbiased covariance of n vectors; directions and higher sums are unknown."""
        return cls._of_scatter(n, mean, covariance * (n - 1), n)

    def merge(self, other: "Moments") -> "Moments":
        """Return the moments of both sets together."""
        if self.n == 0 or other.n == 0:
            return other if self.n == 0 else self
        n = self.n + other.n
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.n / n)
        shifted = [part._higher_sums_about(mean) for part in (self, other)]
        return Moments(
            n,
            mean,
            self.scatter + other.scatter + np.outer(delta, delta) * (self.n * other.n / n),
            shifted[0][0] + shifted[1][0],
            shifted[0][1] + shifted[1][1],
            self.directions + other.directions,
            self.nonzero + other.nonzero,
        )

    def _higher_sums_about(self, centre: Float64Array) -> tuple[Float64Array, float]:
        """Return `third` and `fourth` with z = x - centre."""
        e = self.mean - centre
        square, total, along = float(e @ e), float(np.trace(self.scatter)), self.scatter @ e
        third = self.third + total * e + 2 * along + self.n * square * e
        cross = 4 * float(e @ along) + 4 * float(e @ self.third) + 2 * total * square
        return third, self.fourth + cross + self.n * square**2

    def affine(self, mean: ArrayLike, weight: ArrayLike) -> "Moments":
        """Return the moments of y = (x - mean) W: n, mean and scatter; directions and higher sums are unknown."""
        W = np.asarray(weight, np.float64)
        return self._of_scatter(self.n, (self.mean - np.asarray(mean)) @ W, W.T @ self.scatter @ W, self.nonzero)

    def without_components(self, basis: Float64Array) -> "Moments":
        """Return the `affine` moments of vectors without their components along `basis`, orthonormal [d, m]."""
        keep = np.eye(len(self.mean)) - basis @ basis.T
        return self.affine(np.zeros(len(keep)), keep)

    @classmethod
    def _of_scatter(cls, n: int, mean: Float64Array, scatter: Float64Array, nonzero: int) -> "Moments":
        unknown = np.full(len(mean), np.nan)
        return cls(n, mean, scatter, unknown, np.nan, unknown, nonzero)

    def common_components(self, count: int) -> Float64Array:
        """Return the directions of the largest second moment about the origin, [d, count]."""
        second = self.scatter / max(self.n, 1) + np.outer(self.mean, self.mean)
        return np.ascontiguousarray(eigh(second)[1][:, ::-1][:, :count])

    @property
    def covariance(self) -> Float64Array:
        """Return the unbiased covariance, [d, d]; needs n >= 2."""
        return self.scatter / (self.n - 1)

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return every field as an array, for a file."""
        return {
            "n": np.asarray([self.n, self.nonzero], np.int64),
            "mean": self.mean,
            "scatter": self.scatter,
            "third": self.third,
            "fourth": np.asarray([self.fourth]),
            "directions": self.directions,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> "Moments":
        """Restore the moments that `to_arrays` returned.

        Raises:
            KeyError: an array is missing.
            ValueError: the shapes of the arrays do not match, or numbers are not finite.
        """
        mean, scatter, third, directions, fourth = (
            np.asarray(arrays[name], np.float64) for name in ("mean", "scatter", "third", "directions", "fourth")
        )
        counts = np.asarray(arrays["n"], np.int64)
        width = mean.size
        shapes = [array.shape for array in (mean, scatter, third, directions, fourth, counts)]
        if shapes != [(width,), (width, width), (width,), (width,), (1,), (2,)] or not 0 <= counts[1] <= counts[0]:
            raise ValueError(f"moments of shapes {shapes}")
        if not all(np.isfinite(array).all() for array in (mean, scatter, third, directions, fourth)):
            raise ValueError("moments that are not finite")
        return cls(int(counts[0]), mean, scatter, third, float(fourth[0]), directions, int(counts[1]))
