"""How sure a difference between two rows of a table is: a paired bootstrap over the pairs of sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whiten_whitening.moments import Float64Array

Counts = NDArray[np.float64]

_AT_ONCE = 100
"""Resamples that are in memory together."""

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A percentile interval.

    Attributes:
        low: lower end.
        high: upper end.
    """

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the difference is beyond chance at `LEVEL`."""
        return self.low > 0 or self.high < 0


def interval(samples: Float64Array, level: float = LEVEL) -> Interval:
    """Of resampled values, [b]."""
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def resampled_task(
    similarities: Sequence[Sequence[Float64Array]], scores: Sequence[Float64Array], resamples: int, seed: Sequence[int]
) -> Float64Array:
    """A task's mean over sub-datasets of Spearman's correlation, for each bundle and resample, [m, resamples].

    The pairs of every sub-dataset are drawn with replacement, as many as there are; all bundles see the same draws, so
    that differences between them are paired (Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 8).

    Args:
        similarities: of each bundle, [n] for each sub-dataset.
        scores: [n] for each sub-dataset.
        resamples: how many.
        seed: of the draws, another for each task: tasks are drawn independently.
    """
    random = np.random.default_rng(seed)
    total = np.zeros((len(similarities), resamples))
    for index, gold in enumerate(scores):
        n = len(gold)
        for start in range(0, resamples, _AT_ONCE):
            stop = min(start + _AT_ONCE, resamples)
            counts = random.multinomial(n, np.full(n, 1 / n), size=stop - start).astype(np.float64)
            wanted = counted_ranks(gold, counts)
            for row, found in enumerate(similarities):
                total[row, start:stop] += counted_correlation(counted_ranks(found[index], counts), wanted, counts)
    return total / len(scores)


def counted_ranks(values: Float64Array, counts: Counts) -> Float64Array:
    """Ranks of values of which each occurs a number of times, equal ones sharing their mean rank.

    Args:
        values: [n].
        counts: [b, n], one row for each resample.

    Returns:
        [b, n]; of a value that does not occur, the rank it would have between its neighbours.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    groups = np.add.reduceat(counts[:, order], starts, axis=1)
    middle = np.cumsum(groups, axis=1) - groups / 2 + 0.5
    ranks = np.empty_like(counts)
    ranks[:, order] = np.repeat(middle, np.diff(np.r_[starts, len(values)]), axis=1)
    return ranks


def counted_correlation(a: Float64Array, b: Float64Array, counts: Counts) -> Float64Array:
    """Pearson's correlation of rows, each entry counted so often: all [b, n], to [b]; 0 where one is constant."""
    n = counts.sum(axis=1, keepdims=True)
    centred = [part - (part * counts).sum(axis=1, keepdims=True) / n for part in (a, b)]
    covariance, *variances = (
        np.einsum("bn,bn,bn->b", x, y, counts)
        for x, y in ((centred[0], centred[1]), *((part, part) for part in centred))
    )
    spread = np.sqrt(variances[0] * variances[1])
    return np.asarray(np.divide(covariance, spread, out=np.zeros_like(spread), where=spread > 1e-9))
