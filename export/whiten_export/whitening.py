"""Whitening: streaming moments in float64, and the affine map that makes a covariance the identity. numpy alone.

Su et al., arXiv 2103.15316, section 3.2: x̂ = (x - μ) W with cov(x) = U Λ Uᵀ and W = U Λ^(-1/2), or its first k
columns. Merging of moments: Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm" (1979), eq. 2.1.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.errors import UsageError

EIGENVALUE_FLOOR = 1e-6
"""Smallest eigenvalue that is divided by, relative to the largest: smaller ones are raised to it."""

NULL_EIGENVALUE = 1e-10
"""Relative eigenvalue under which a direction holds nothing but the rounding of float32 vectors, and is mapped to 0.
Every layer that ends in a LayerNorm has such a direction: pooling keeps the sum of (h - bias) / scale at 0."""

_FLOAT32_ROUNDING = 2.0**-23

ADVISED_RATIO, WARNED_RATIO = 10, 4
"""Sentences per dimension that are advised, and under which a warning is due."""

Float64Array = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Count, mean and centred scatter of vectors; exact to rounding however the vectors were split.

    Attributes:
        n: vectors seen.
        mean: [d].
        scatter: Σ (x - mean)(x - mean)ᵀ, [d, d].
    """

    n: int
    mean: Float64Array
    scatter: Float64Array

    @classmethod
    def empty(cls, width: int) -> "Moments":
        """Moments of no vectors of `width` coordinates."""
        return cls(0, np.zeros(width), np.zeros((width, width)))

    @classmethod
    def of(cls, vectors: ArrayLike) -> "Moments":
        """Moments of vectors [n, d], n >= 1."""
        rows = np.asarray(vectors, np.float64)
        mean = rows.mean(axis=0)
        centred = rows - mean
        return cls(len(rows), mean, centred.T @ centred)

    def merge(self, other: "Moments") -> "Moments":
        """Moments of both sets together."""
        n = self.n + other.n
        if n == 0:
            return self
        delta = other.mean - self.mean
        return Moments(
            n,
            self.mean + delta * (other.n / n),
            self.scatter + other.scatter + np.outer(delta, delta) * (self.n * other.n / n),
        )

    def without_components(self, basis: Float64Array) -> "Moments":
        """Moments of the same vectors with their components along `basis`, orthonormal [d, m], taken away."""
        keep = np.eye(len(self.mean)) - basis @ basis.T
        return Moments(self.n, self.mean @ keep, keep @ self.scatter @ keep)

    def common_components(self, count: int) -> Float64Array:
        """Directions of the largest second moment about the origin, [d, count]."""
        second = self.scatter / max(self.n, 1) + np.outer(self.mean, self.mean)
        return np.ascontiguousarray(np.linalg.eigh(second)[1][:, ::-1][:, :count])

    @property
    def covariance(self) -> Float64Array:
        """Unbiased covariance, [d, d]; needs n >= 2."""
        return self.scatter / (self.n - 1)


@dataclass(frozen=True)
class WhiteningMap:
    """The affine map y = (x - mean) W.

    Attributes:
        mean: [d].
        weight: W, [d, k]; columns by descending eigenvalue, so the first m columns are the m-dimensional whitening.
        eigenvalues: of the covariance, all d, descending, before the floor.
        rank: eigenvalues above the floor.
        n_samples: vectors it was fitted on.
        common_components: directions that it takes away before.
    """

    mean: Float64Array
    weight: Float64Array
    eigenvalues: Float64Array
    rank: int
    n_samples: int
    common_components: int = 0


def check_sample_count(n: int, width: int, dimension: int, what: str = "sentences") -> str | None:
    """Whether n vectors are enough to whiten `width` dimensions and keep `dimension`.

    n vectors have a covariance of rank n - 1 at most; whitened in full, every pair of them has cosine -1 / (n - 1).

    Returns:
        A warning, or None.

    Raises:
        UsageError: too few: n <= width, and not four per kept dimension either.
    """
    if n <= width and n < WARNED_RATIO * dimension:
        fewer = f", or keep --dim {n // WARNED_RATIO} or fewer dimensions" if n >= WARNED_RATIO else ""
        raise UsageError(
            f"{n} {what} cannot whiten {width} dimensions: the covariance has rank {max(n - 1, 0)} at most, and "
            f"all pairs would come out equally similar; give more than {width} {what} "
            f"({ADVISED_RATIO * width} are advised){fewer}"
        )
    if n < WARNED_RATIO * width:
        return f"{n} {what} for {width} dimensions give a rough whitening; {ADVISED_RATIO * width} or more are advised"
    return None


def fit_pca(moments: Moments, dimension: int | None = None, floor: float = EIGENVALUE_FLOOR) -> WhiteningMap:
    """PCA whitening: W = U Λ^(-1/2), columns by descending eigenvalue, the largest entry of each column positive.

    Args:
        moments: of at least 2 vectors of d coordinates.
        dimension: columns to keep; None for all d.
        floor: eigenvalues below floor · λ_max are raised to it; below `NULL_EIGENVALUE` · λ_max, columns are 0.

    Raises:
        UsageError: fewer than 2 vectors, or all of them are equal.
        ValueError: `dimension` is not in 1..d.
    """
    width = len(moments.mean)
    kept = width if dimension is None else dimension
    if not 1 <= kept <= width:
        raise ValueError(f"dimension is {dimension}; wanted 1 to {width}")
    if moments.n < 2:
        raise UsageError(f"{moments.n} sentences have no covariance; give at least 2")
    ascending, vectors = np.linalg.eigh(moments.covariance)
    eigenvalues, basis = ascending[::-1], vectors[:, ::-1]
    largest = eigenvalues[0]
    if not largest > np.square(_FLOAT32_ROUNDING * np.abs(moments.mean).max()):
        raise UsageError(
            f"all {moments.n} sentences have the same vector, so there is nothing to whiten; give different sentences, "
            "and not cls pooling of layer 0 or of a decoder, whose first token is the same in every text"
        )
    signs = np.sign(basis[np.abs(basis).argmax(axis=0), np.arange(width)])
    kept_signs = np.where(eigenvalues > NULL_EIGENVALUE * largest, signs, 0)
    scale = kept_signs / np.sqrt(np.maximum(eigenvalues, floor * largest))
    return WhiteningMap(
        mean=moments.mean,
        weight=np.ascontiguousarray((basis * scale)[:, :kept]),
        eigenvalues=np.ascontiguousarray(eigenvalues),
        rank=int((eigenvalues > floor * largest).sum()),
        n_samples=moments.n,
    )


def fit_sif(moments: Moments, dimension: int | None, whiten: bool) -> WhiteningMap:
    """Take away the direction that all sentences share (Arora et al., ICLR 2017, algorithm 1), then whiten or not.

    Both are linear: (x (I - uuᵀ) - m) W = (x - m) (I - uuᵀ) W, m being the mean of what is left, which has no part
    along u.

    Args:
        moments: of weighted averages, at least 2 of them.
        dimension: columns to keep when whitening; None for all d.
        whiten: if not, the map is x (I - uuᵀ), with mean 0.

    Raises:
        UsageError: fewer than 2 vectors, or all of them are equal.
    """
    basis = moments.common_components(1)
    keep = np.eye(len(basis)) - basis @ basis.T
    left = moments.without_components(basis)
    fitted = fit_pca(left, dimension)
    if whiten:
        return replace(fitted, weight=keep @ fitted.weight, common_components=1)
    return replace(fitted, mean=np.zeros(len(basis)), weight=keep, common_components=1)
