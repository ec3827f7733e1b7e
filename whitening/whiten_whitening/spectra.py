"""Decompose covariances: eigenvalues and eigenvectors with signs of their own, powers, triangular roots."""

import numpy as np

from whiten_whitening.moments import Float64Array, eigh, svd


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
    """Return λ^(-β/2) of descending eigenvalues; floored, and 0 where there is only rounding."""
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
