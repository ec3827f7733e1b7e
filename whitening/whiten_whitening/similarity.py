"""Compare vectors: cosines of pairs, their rank correlation with scores, and nDCG of a search with judgements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.errors import UsageError, described
from whiten_runtime.inference.vectors import Nearest, check_no_codes
from whiten_whitening.moments import Float64Array


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
