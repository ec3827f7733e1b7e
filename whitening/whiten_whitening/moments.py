"""Compute moments of vectors, streamed and merged in float64, and decompose their covariances.

Merging of mean and scatter: Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm" (1979), eq. 2.1. The
higher sums follow from Σ (z + e)(...) with Σ z = 0, where z is centred and e is the old centre minus the new one.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

Float64Array = NDArray[np.float64]

# OpenBLAS gives other bits of eigenvectors and singular vectors with other numbers of threads, so one thread computes
# them; products do not change.


def eigh(matrix: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return eigenvalues, ascending [d], and eigenvectors in columns [d, d], of a symmetric matrix [d, d]."""
    with threadpool_limits(1, "blas"):
        values, vectors = np.linalg.eigh(matrix)
    return values, vectors


def svd(matrix: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return U [m, m], singular values, descending, and Vᵀ [n, n], of a matrix [m, n]."""
    with threadpool_limits(1, "blas"):
        left, values, right = np.linalg.svd(matrix)
    return left, values, right


def cholesky(matrix: Float64Array) -> Float64Array:
    """Return the lower triangular L of a positive definite matrix L Lᵀ [d, d]."""
    with threadpool_limits(1, "blas"):
        lower = np.linalg.cholesky(matrix)
    return np.asarray(lower, np.float64)


def spectrum(matrix: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return eigenvalues, descending, [d], and eigenvectors in columns whose largest entry is positive, [d, d]."""
    ascending, vectors = eigh(matrix)
    return np.ascontiguousarray(ascending[::-1]), _with_signs(vectors[:, ::-1])


def scaled_spectrum(covariance: Float64Array, noise: Float64Array, null: float) -> tuple[Float64Array, Float64Array]:
    """Return eigenvalues and eigenvectors as `spectrum` does, right for columns of any scales, and 0 for null ones.

    With D the deviations and D⁻¹ Σ D⁻¹ = G Θ Gᵀ, the singular values of Θ^½ Gᵀ D are the roots of Σ's eigenvalues, and
    have float64's precision where Σ's own would have half of it. What is null is seen in Θ, which has no scales.
    """
    variances = np.diag(covariance)
    scale = np.sqrt(np.where(variances > noise, variances, 0))
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    theta, basis = spectrum(inverse[:, None] * covariance * inverse)
    nonzero = theta > null * theta[0]
    root = np.sqrt(np.where(nonzero, theta, 0))[:, None] * basis.T * scale
    _, values, rows = svd(root)
    values[np.count_nonzero(nonzero) :] = 0
    return np.square(values), _with_signs(np.ascontiguousarray(rows.T))


def _with_signs(basis: Float64Array) -> Float64Array:
    """Return eigenvectors in columns, with the signs that make the largest entry of each positive."""
    return basis * np.where(basis[np.abs(basis).argmax(axis=0), np.arange(len(basis))] < 0, -1.0, 1.0)


def powers(eigenvalues: Float64Array, beta: float, floor: float, null: float) -> Float64Array:
    """Return λ^(-β/2) of descending eigenvalues; floored, and 0 where there is only rounding.

    With β = 0 it is 1 everywhere: nothing is divided by, so that nothing has to be dropped.
    """
    if not beta:
        return np.ones_like(eigenvalues)
    largest = eigenvalues[0]
    known = eigenvalues > null * largest
    raised = np.maximum(np.where(known, eigenvalues, largest), floor * largest) ** (-beta / 2)
    return np.asarray(np.where(known, raised, 0))


def triangular(root: Float64Array) -> Float64Array:
    """Return the lower triangular L with L Lᵀ = root rootᵀ and no negative diagonal, also where that is singular.

    root = L Q, from the QR decomposition of rootᵀ: unlike Cholesky's own algorithm it needs no full rank.
    """
    lower = np.asarray(np.linalg.qr(root.T, mode="r")).T
    return np.asarray(np.tril(lower * np.where(np.diag(lower) < 0, -1, 1)))


_ROWS_PER_BLOCK = 1024
"""Rows that are copied to float64 at a time: the copy stays in the processor's cache."""


@dataclass(frozen=True)
class Moments:
    """Sums over n vectors x, exact to rounding however the vectors were split; z = x - mean.

    Merging in the same order gives the same bits.
    """

    n: int  # number of vectors seen
    mean: Float64Array  # mean of the vectors, [d]
    scatter: Float64Array  # Σ z zᵀ, [d, d]
    third: Float64Array  # Σ |z|² z, [d]; NaN where it is not known
    fourth: float  # Σ |z|⁴; NaN where it is not known
    directions: Float64Array  # Σ x / |x| over the nonzero vectors, [d]
    nonzero: int  # number of nonzero vectors

    @classmethod
    def empty(cls, width: int) -> "Moments":
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
        for start in range(0, len(table), _ROWS_PER_BLOCK):
            rows = table[start : start + _ROWS_PER_BLOCK].astype(np.float64)
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
        names = ("mean", "scatter", "third", "directions", "fourth")
        if odd := [name for name in ("n", *names) if arrays[name].dtype != (np.int64 if name == "n" else np.float64)]:
            raise ValueError(f"moments whose {odd[0]} has the type {arrays[odd[0]].dtype}")
        mean, scatter, third, directions, fourth = (np.asarray(arrays[name], np.float64) for name in names)
        counts = np.asarray(arrays["n"], np.int64)
        width = mean.size
        shapes = [array.shape for array in (mean, scatter, third, directions, fourth, counts)]
        if shapes != [(width,), (width, width), (width,), (width,), (1,), (2,)] or not 0 <= counts[1] <= counts[0]:
            raise ValueError(f"moments of shapes {shapes}")
        if not all(np.isfinite(array).all() for array in (mean, scatter, third, directions, fourth)):
            raise ValueError("moments that are not finite")
        return cls(int(counts[0]), mean, scatter, third, float(fourth[0]), directions, int(counts[1]))


def ledoit_wolf(moments: Moments) -> float:
    """Return the α of Ledoit & Wolf, "A well-conditioned estimator for large-dimensional covariance matrices" (2004).

    Section 3.3, exact from moments: Σᵢ |xᵢxᵢᵀ - S|² = Σᵢ |xᵢ|⁴ - n |S|² for centred xᵢ and S = Σᵢ xᵢxᵢᵀ / n.
    """
    n, d = moments.n, len(moments.mean)
    S = moments.scatter / n
    square, scale = float(np.square(S).sum()), float(np.trace(S)) / d
    spread = square - d * scale**2
    noise = min((moments.fourth / n - square) / n, spread)
    return noise / spread if noise > 0 else 0.0


def oas(moments: Moments) -> float:
    """Return the α of the oracle approximating shrinkage.

    Chen et al., "Shrinkage algorithms for MMSE covariance estimation" (2010), eq. 23, in the form that scikit-learn
    uses: without the terms of order 1/d.
    """
    n, d = moments.n, len(moments.mean)
    S = moments.scatter / n
    square, trace = float(np.square(S).mean()), (float(np.trace(S)) / d) ** 2
    denominator = (n + 1) * (square - trace / d)
    return 1.0 if denominator <= 0 else min((square + trace) / denominator, 1.0)


SAMPLE_SIZE = 4096

Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class Sample:
    """Vectors with the smallest keys, at most `SAMPLE_SIZE`; since keys are hashes, the sample is random."""

    keys: Keys  # keys of the vectors, ascending, [m]
    vectors: NDArray[np.float32]  # vectors of the sample, float32 [m, d]

    @classmethod
    def empty(cls, width: int) -> "Sample":
        return cls(np.empty(0, np.uint64), np.empty((0, width), np.float32))

    def add(self, keys: Keys, vectors: NDArray[np.float32]) -> "Sample":
        if len(self.keys) == SAMPLE_SIZE:
            smaller = keys < self.keys[-1]
            keys, vectors = keys[smaller], vectors[smaller]
        if not len(keys):
            return self
        joined = np.concatenate([self.keys, keys])
        order = np.argsort(joined, kind="stable")[:SAMPLE_SIZE]
        return Sample(joined[order], np.concatenate([self.vectors, vectors])[order])


def text_keys(texts: Iterable[str]) -> Keys:
    """Return the keys of texts: 8 bytes of each text's hash."""
    digests = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def row_keys(start: int, count: int) -> Keys:
    """Return the keys of rows `start` to `start + count`: SplitMix64 of their numbers (Steele et al., 2014)."""
    with np.errstate(over="ignore"):
        keys = (np.arange(start + 1, start + count + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(keys ^ (keys >> np.uint64(31)))
