"""Compute confidence intervals of differences between bundles, by a paired bootstrap over the pairs of sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whiten_whitening.moments import Float64Array

Counts = NDArray[np.float64]

_AT_ONCE = 100
"""Number of resamples that are in memory together."""

LEVEL = 0.95
"""Confidence level of the intervals."""


@dataclass(frozen=True)
class Interval:
    """Holds a percentile interval.

    Attributes:
        low: lower end.
        high: upper end.
    """

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Return whether the interval lies on one side of 0: the difference is significant at `LEVEL`."""
        return self.low > 0 or self.high < 0


def interval(samples: Float64Array, level: float = LEVEL) -> Interval:
    """Return the percentile interval of resampled values, [b]."""
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def resampled_task(
    similarities: Sequence[Sequence[Float64Array]], scores: Sequence[Float64Array], resamples: int, seed: Sequence[int]
) -> Float64Array:
    """Return a task's mean over sub-datasets of Spearman's correlation, for each bundle and resample, [m, resamples].

    The pairs of every sub-dataset are drawn with replacement, as many as there are; all bundles see the same draws, so
    that differences between them are paired (Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 8).

    Args:
        similarities: cosines of each bundle, [n] for each sub-dataset.
        scores: people's scores, [n] for each sub-dataset.
        resamples: number of resamples.
        seed: seed of the draws; a different one for each task, so that tasks are drawn independently.
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
    """Return the ranks of values that are repeated; equal values share their mean rank.

    Args:
        values: values to rank, [n].
        counts: number of times that each value occurs, one row for each resample, [b, n].

    Returns:
        Ranks, [b, n]; a value with count 0 gets the rank that it would have between its neighbours.
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
    """Return Pearson's correlation of rows, entries weighted by counts: all [b, n], to [b]; 0 where one is constant."""
    n = counts.sum(axis=1, keepdims=True)
    centred = [part - (part * counts).sum(axis=1, keepdims=True) / n for part in (a, b)]
    covariance, *variances = (
        np.einsum("bn,bn,bn->b", x, y, counts)
        for x, y in ((centred[0], centred[1]), *((part, part) for part in centred))
    )
    spread = np.sqrt(variances[0] * variances[1])
    return np.asarray(np.divide(covariance, spread, out=np.zeros_like(spread), where=spread > 1e-9))
