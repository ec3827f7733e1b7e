"""Measure a search by judgements of which documents answer which queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.inference.vectors import Nearest
from whiten_whitening.moments import Float64Array

_TOP = 10


@dataclass(frozen=True)
class Judged:
    """Vectors of queries and documents, with the grades of relevant documents."""

    queries: Float64Array  # [q, d]
    documents: Float64Array  # [n, d], of equally near ones the first is found first
    grades: tuple[
        Mapping[int, int], ...
    ]  # by the rows of relevant documents, for each query; below 0: not in documents
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


def ndcg(gains: list[list[int]], relevant: list[list[int]], top: int = _TOP) -> Float64Array:
    """Return the nDCG of each query, [q], with the grade itself as gain, as in trec_eval.

    Args:
        gains: grades of the documents of each query, the nearest first; 0 for one that is not relevant.
        relevant: grades of all relevant documents of each query.
        top: number of documents that count.
    """
    best = [sorted(own, reverse=True) for own in relevant]
    return np.array([_dcg(own[:top]) / _dcg(ideal[:top]) for own, ideal in zip(gains, best, strict=True)])


def _dcg(grades: list[int]) -> float:
    return float(np.dot(grades, 1 / np.log2(np.arange(2, len(grades) + 2))))
