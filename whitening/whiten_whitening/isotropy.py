"""Compute isotropy, how evenly vectors use their space, by three scores of the literature."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_whitening.moments import Float64Array, Moments, eigh

HURTFUL_COSINE = 0.37
"""Mean cosine of vectors under a map from which the map does them harm: they share a direction that it leaves in.

Measured on the layers of all-MiniLM-L6-v2 with whitenings fitted on one kind of text each: all that lowered the mean of
five similarity tasks by more than 2.5 are above it, all that raised it by 1 or more are below it but one (0.41).
"""

_SAME = 0.99
"""Ratio of two IsoScores above which they count as equal: a rotation changes it only by rounding."""


@dataclass(frozen=True)
class Spread:
    """Measures how evenly vectors use their space."""

    iso_score: float  # IsoScore of the covariance
    # share of the mean in the second moment, |μ|² / (|μ|² + tr Σ); close to the mean cosine of pairs
    average_cosine: float

    @classmethod
    def of(cls, mean: ArrayLike, covariance: Float64Array) -> "Spread":
        """Return the spread of vectors of a mean, [d], and a covariance, [d, d]."""
        square = float(np.square(np.asarray(mean, np.float64)).sum())
        total = square + float(np.trace(covariance))
        return cls(iso_score(covariance), square / total if total > 0 else 0.0)

    def hurt_by(self, after: "Spread", rescales: bool = True) -> bool:
        """Return whether a map does harm to vectors of this spread, which have the spread `after` under it.

        A whitening is meant to spread vectors evenly around 0. Where their IsoScore falls, or they still share a
        direction under a map that rescales others, similarities are measurably worse than without the map.
        """
        falls = after.iso_score < _SAME * self.iso_score
        return falls or (rescales and after.average_cosine >= HURTFUL_COSINE)


def iso_score(covariance: Float64Array) -> float:
    """Return the IsoScore: 0 if all variance lies along one direction, 1 if it is the same along all.

    Rudman et al., "IsoScore" (Findings of ACL 2022), definition 3.1, in closed form over the eigenvalues of the
    covariance Σ, [d, d]: (tr(Σ)² / |Σ|_F² - 1) / (d - 1). One dimension, or no variance at all, counts as 1.
    """
    d, square = len(covariance), float(np.square(covariance).sum())
    if d == 1 or square == 0:
        return 1.0
    return float((np.trace(covariance) ** 2 / square - 1) / (d - 1))


def average_cosine(moments: Moments) -> float:
    """Return the mean cosine over all pairs of different vectors, without sampling: (|Σ u|² - m) / (n (n - 1)).

    u are the m unit vectors; the cosine with any of the n - m zero vectors is 0. NaN for fewer than 2 vectors.
    """
    if moments.n < 2:
        return float("nan")
    square = float(moments.directions @ moments.directions)
    return (square - moments.nonzero) / (moments.n * (moments.n - 1))


def partition_score(vectors: NDArray[np.floating]) -> float:
    """Return min Z / max Z of Z(c) = Σ exp(cᵀx), where c runs over the eigenvectors of XᵀX, X [n, d].

    Mu & Viswanath, "All-but-the-top" (ICLR 2018), section 2; 1 is isotropic. The sign of an eigenvector is
    arbitrary: here its largest entry is positive.
    """
    rows = vectors.astype(np.float64)
    _, basis = eigh(rows.T @ rows)
    basis = basis * np.where(basis[np.abs(basis).argmax(axis=0), np.arange(len(basis))] < 0, -1, 1)
    exponents = rows @ basis
    largest = exponents.max(axis=0)
    logarithms = largest + np.log(np.exp(exponents - largest).sum(axis=0))
    return float(np.exp(logarithms.min() - logarithms.max()))
