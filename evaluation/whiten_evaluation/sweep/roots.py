"""Compute an inverse root of a covariance faster than by its eigenvectors, with eigenvalues floored as in `fit_map`.

Cosines after a full whitening depend on Σ⁻¹ alone, so that any square root of Σ⁻¹ gives them, and Cholesky's is the
cheapest: Σ = Rᵀ R, z = R⁻ᵀ (x - μ). But `fit_map` raises small eigenvalues to a floor, and drops those that are due to
rounding. There are few of them: pooling preserves the directions that a LayerNorm makes constant. Inverse iteration on
a block finds their eigenvectors (Golub & Van Loan, "Matrix Computations", 8.2), which are then whitened separately.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from whiten_runtime.errors import UsageError
from whiten_whitening.maps import EIGENVALUE_FLOOR, NULL_EIGENVALUE, WhiteningSpec, fit_map
from whiten_whitening.moments import Float64Array, Moments

Float32Array = NDArray[np.float32]

_NUDGE = 1e-12
"""Constant that is added to all eigenvalues, relative to the Frobenius norm, so that a singular matrix has a root."""

_BLOCK, _STEPS = 8, 5
_BELOW = 4.0
"""Multiple of the floor up to which eigenvectors are whitened separately."""

_RESIDUAL = 1e-3
"""Largest |Σ u - λ u|, relative to the floor, at which u counts as an eigenvector."""


@dataclass(frozen=True)
class InverseRoot:
    """Holds W with W Wᵀ = Σ⁻¹, where small eigenvalues of Σ are floored.

    Attributes:
        triangle: upper triangular inverse root of Σ with its small eigenvalues raised to the largest one, [d, d],
            columns contiguous.
        small_directions: unit eigenvectors of the small eigenvalues, [d, m]; m may be 0.
        weights: factors of the coordinates along the small directions, [m].
    """

    triangle: Float32Array
    small_directions: Float64Array
    weights: Float64Array

    def __call__(self, centred: Float32Array) -> Float32Array:
        """Whiten centred vectors, [n, d] to [n, d + m]; without small directions, the input is overwritten."""
        along = centred @ self.small_directions if len(self.weights) else None
        rest = centred if along is None else (centred - along @ self.small_directions.T).astype(np.float32)
        # Both arguments are column-major, as BLAS needs them.
        white = blas.strmm(1.0, self.triangle, rest.T, trans_a=1, overwrite_b=1).T
        if along is None:
            return cast(Float32Array, white)
        return np.hstack([white, (along * self.weights).astype(np.float32)])


def inverse_root(covariance: Float64Array) -> InverseRoot | None:
    """Return the inverse root; None if too many eigenvalues are small, the covariance is zero, or d is 2 or less.

    Args:
        covariance: covariance of the vectors, [d, d].
    """
    width = len(covariance)
    norm = float(np.sqrt(np.square(covariance).sum()))
    if not norm or width <= 2:
        return None
    nudged = covariance + np.diag(np.full(width, _NUDGE * norm))
    inverse = _inverse_triangle(nudged)
    if inverse is None:
        return None
    nothing = InverseRoot(np.asfortranarray(inverse, np.float32), np.empty((width, 0)), np.empty(0))
    # 1 / λ_min <= tr Σ⁻¹ = |R⁻¹|² and λ_max <= |Σ|, in Frobenius's norm.
    if np.square(inverse).sum() * norm * EIGENVALUE_FLOOR < 1:
        return nothing
    largest = _largest(covariance)
    found = None if largest is None else _faint(covariance, inverse, largest)
    if found is None or largest is None:
        return None
    values, small_directions = found
    if not len(values):
        return nothing
    inverse = _inverse_triangle(nudged + (small_directions * (largest - values)) @ small_directions.T)
    if inverse is None:
        return None
    floored = np.maximum(values, EIGENVALUE_FLOOR * largest)
    weights = np.where(values > NULL_EIGENVALUE * largest, 1 / np.sqrt(floored), 0)
    return InverseRoot(np.asfortranarray(inverse, np.float32), small_directions, weights)


def whitening_root(
    n: int, mean: Float64Array, covariance: Float64Array
) -> Callable[[Float32Array], Float32Array] | None:
    """Return a function that whitens centred vectors in full, which may overwrite them; None if all are equal.

    Args:
        n: number of vectors that the whitening is fitted on.
        mean: their mean, [d].
        covariance: their covariance, [d, d].
    """
    root = inverse_root(covariance)
    if root is not None:
        return root
    try:
        fitted = fit_map(Moments.of_covariance(n, mean, covariance), WhiteningSpec())
    except UsageError:
        return None
    weight = fitted.weight.astype(np.float32)
    return lambda centred: centred @ weight


def _inverse_triangle(matrix: Float64Array) -> Float64Array | None:
    """Return R⁻¹ for a positive definite matrix Rᵀ R; None if the matrix is not positive definite."""
    upper, failed = lapack.dpotrf(matrix, lower=0, clean=1)
    if failed:
        return None
    inverse, failed = lapack.dtrtri(upper, lower=0)
    return None if failed else np.asarray(inverse)


def _largest(covariance: Float64Array) -> float | None:
    """Return the largest eigenvalue, by Lanczos's method; None if it does not converge."""
    start = covariance[:, int(np.diag(covariance).argmax())]
    try:
        (value,) = eigsh(covariance, k=1, which="LA", v0=start, tol=1e-10, return_eigenvectors=False)
    except ArpackNoConvergence:
        return None
    return float(value)


def _faint(covariance: Float64Array, inverse: Float64Array, largest: float) -> tuple[Float64Array, Float64Array] | None:
    """Return eigenvalues [m] up to `_BELOW` times the floor, with eigenvectors [d, m]; None if there are too many."""
    floor = EIGENVALUE_FLOOR * largest
    width = len(covariance)
    block = np.linalg.qr(np.random.default_rng(0).standard_normal((width, min(_BLOCK, width))))[0]
    for _ in range(_STEPS):
        block = np.linalg.qr(inverse @ (inverse.T @ block))[0]
    image = covariance @ block
    values, turn = np.linalg.eigh(block.T @ image)
    small = values < _BELOW * floor
    if small.all():
        return None
    values, small_directions, image = values[small], (block @ turn)[:, small], (image @ turn)[:, small]
    residuals = np.linalg.norm(image - small_directions * values, axis=0)
    return None if (residuals > _RESIDUAL * floor).any() else (values, small_directions)
