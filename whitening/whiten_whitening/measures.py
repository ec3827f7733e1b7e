"""Measure vectors: isotropy, cosines of pairs and their rank correlation with scores, nDCG of a search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.errors import UsageError, described
from whiten_runtime.inference.vectors import Nearest, check_no_codes
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


def checked_vectors(vectors: ArrayLike, width: int | None = None, single: bool = False) -> NDArray[np.generic]:
    """Return vectors as an array of finite numbers [n, k]; with `single`, one vector [k] becomes [1, k]."""
    wanted = "[n, k]" if width is None else f"[n, {width}], all coordinates of the bundle's vectors"
    try:
        rows = np.asarray(vectors)
    except ValueError:
        raise UsageError(f"vectors are not rows of one length; wanted numbers {wanted}") from None
    rows = np.atleast_2d(rows) if single else rows
    check_no_codes("vectors", rows)
    if rows.ndim != 2 or rows.dtype.kind not in "fiu" or rows.shape[1] != (width or rows.shape[1]) or not rows.shape[1]:
        raise UsageError(f"vectors are {described(rows)}; wanted numbers {wanted}")
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise UsageError(f"vectors[{int(finite.argmin())}] is not finite; leave it out")
    return rows


def cosines(a: Float64Array, b: Float64Array) -> Float64Array:
    """Return the cosine of each row of a with the same row of b, both [n, d]; 0 where one of them is zero."""
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    products: Float64Array = np.einsum("nd,nd->n", a, b)
    return products / np.where(norms > 0, norms, np.inf)


def unit(rows: NDArray[np.floating]) -> Float64Array:
    """Return rows divided by their norms, float64 [n, k]; rows of zeros stay."""
    exact = rows.astype(np.float64)
    norms = np.linalg.norm(exact, axis=1, keepdims=True)
    return exact / np.where(norms > 0, norms, 1)


def spearman(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Return the rank correlation of two [n]; ties share their mean rank; 0 where one of them is constant."""
    both = [ranks(values) for values in (a, b)]
    if any(np.ptp(rank) == 0 for rank in both):
        return 0.0
    return float(np.asarray(np.corrcoef(both))[0, 1])


def spearman_error(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Return the standard error of the rank correlation of two [n], by its influence function for given ranks.

    Each pair moves the correlation r of standardised ranks x and y by (x y - r (x² + y²) / 2) / n.
    """
    both = [ranks(values) for values in (a, b)]
    if any(np.ptp(rank) == 0 for rank in both):
        return 0.0
    x, y = ((rank - rank.mean()) / rank.std() for rank in both)
    influence = x * y - (x * y).mean() * (np.square(x) + np.square(y)) / 2
    return float(influence.std() / np.sqrt(len(influence)))


def ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the ranks of values, [n], from 1 on, as scipy's `rankdata`; ties share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    means = counts.cumsum().astype(np.float64) - (counts - 1) / 2
    return np.asarray(np.take(means, place), np.float64)


_TOP = 10


@dataclass(frozen=True)
class Judged:
    queries: Float64Array  # [q, d]
    documents: Float64Array  # [n, d], of equally near ones the first is found first
    # grades of each query by the rows of relevant documents; below 0: not in documents
    grades: tuple[Mapping[int, int], ...]
    own: tuple[int | None, ...]  # row of the document that a query itself is, for each query; None for most

    def ndcg_at_10(self, queries: Float64Array, documents: Float64Array, by_cosine: bool) -> Float64Array:
        """Return the nDCG@10 of each query, [q], by a search with these vectors, [q, k] and [n, k]."""
        nearest = Nearest.empty(len(queries)).add(_single(queries), _single(documents), 0, _TOP + 1, by_cosine)
        orders = without_own(nearest.rows, self.own, _TOP)
        gains = [[own.get(row, 0) for row in order] for own, order in zip(self.grades, orders, strict=True)]
        return ndcg(gains, [list(own.values()) for own in self.grades])


def _single(rows: Float64Array) -> NDArray[np.float32]:
    return np.ascontiguousarray(rows, np.float32)


def without_own(rows: NDArray[np.int64], own: Sequence[int | None], top: int) -> list[list[int]]:
    """Return the `top` nearest documents of each query, without the one that the query itself is.

    So do BEIR and MTEB (`ignore_identical_ids`) in ArguAna and Quora, where every query is a document too.

    Args:
        rows: rows of documents for each query, the nearest first, [q, top + 1].
        own: row of the document that each query itself is; None where it is none.
        top: number of documents to return.
    """
    return [
        [row for row in ranking if row != left_out][:top] for ranking, left_out in zip(rows.tolist(), own, strict=True)
    ]


def ndcg(gains: list[list[int]], relevant: list[list[int]]) -> Float64Array:
    """Return the nDCG@10 of each query, [q], with the grade itself as gain, as in trec_eval.

    Args:
        gains: grades of the documents of each query, the nearest first; 0 for one that is not relevant.
        relevant: grades of all relevant documents of each query.
    """
    best = [sorted(own, reverse=True) for own in relevant]
    return np.array([_dcg(own[:_TOP]) / _dcg(ideal[:_TOP]) for own, ideal in zip(gains, best, strict=True)])


def _dcg(grades: list[int]) -> float:
    return float(np.dot(grades, 1 / np.log2(np.arange(2, len(grades) + 2))))
