"""How evenly vectors use their space: three scores of the literature."""

import numpy as np
from numpy.typing import NDArray

from whiten_whitening.moments import Float64Array, Moments


def iso_score(covariance: Float64Array) -> float:
    """IsoScore: 0 if all variance lies along one direction, 1 if it is the same along all.

    Rudman et al., "IsoScore" (Findings of ACL 2022), definition 3.1, in closed form over the eigenvalues of the
    covariance Σ: (tr(Σ)² / |Σ|_F² - 1) / (d - 1). One dimension, or no variance at all, counts as 1.

    Args:
        covariance: [d, d].
    """
    d, square = len(covariance), float(np.square(covariance).sum())
    if d == 1 or square == 0:
        return 1.0
    return float((np.trace(covariance) ** 2 / square - 1) / (d - 1))


def average_cosine(moments: Moments) -> float:
    """Mean cosine over all pairs of different vectors, without sampling pairs: (|Σ u|² - m) / (n (n - 1)).

    u are the unit vectors; the n - m zero vectors are similar to nothing. NaN for fewer than 2 vectors.
    """
    if moments.n < 2:
        return float("nan")
    square = float(moments.directions @ moments.directions)
    return (square - moments.nonzero) / (moments.n * (moments.n - 1))


def partition_score(vectors: NDArray[np.floating]) -> float:
    """Smallest over largest Z(c) = Σ exp(cᵀx), c running over the eigenvectors of XᵀX; 1 is isotropic.

    Mu & Viswanath, "All-but-the-top" (ICLR 2018), section 2. Eigenvectors have no sign of their own: each is taken
    with its largest entry positive.

    Args:
        vectors: X, [n, d].
    """
    rows = vectors.astype(np.float64)
    _, basis = np.linalg.eigh(rows.T @ rows)
    basis = basis * np.where(basis[np.abs(basis).argmax(axis=0), np.arange(len(basis))] < 0, -1, 1)
    exponents = rows @ basis
    largest = exponents.max(axis=0)
    logarithms = largest + np.log(np.exp(exponents - largest).sum(axis=0))
    return float(np.exp(logarithms.min() - logarithms.max()))
