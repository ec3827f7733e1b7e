"""Learn the weights of layers in their average from pairs with scores."""

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from whiten_whitening.moments import Float64Array
from whiten_whitening.similarity import ranks

_STEPS = (0.2, 0.1, 0.05)
"""Amounts of weight that are moved from one layer to another; the last is the resolution of the result."""

_WORTH = 1e-3
"""Gain in Spearman's correlation over equal weights below which those are kept."""


class _Similarity:
    """Computes Spearman's correlation for weights, from products of the layers' vectors that are computed once."""

    def __init__(self, first: Float64Array, second: Float64Array, scores: Float64Array) -> None:
        self._gold = _standardised(ranks(scores))
        self._across = np.einsum("lnd,mnd->lmn", first, second, optimize=True)
        self._within = [np.einsum("lnd,mnd->lmn", rows, rows, optimize=True) for rows in (first, second)]

    def __call__(self, weights: Float64Array) -> float:
        """Return the correlation between the scores and the cosines of the weighted averages."""
        across, *squares = (weights @ np.tensordot(weights, products, 1) for products in (self._across, *self._within))
        norms = np.sqrt(np.maximum(squares[0] * squares[1], 0))
        cosines = across / np.where(norms > 0, norms, np.inf)
        return float(_standardised(np.argsort(np.argsort(cosines)).astype(np.float64)) @ self._gold)


def _standardised(values: Float64Array) -> Float64Array:
    centred = values - values.mean()
    length = np.linalg.norm(centred)
    return np.asarray(centred / (length if length > 0 else 1))


def learn_weights(first: Float64Array, second: Float64Array, scores: Float64Array) -> tuple[float, ...] | None:
    """Return the weights, in steps of 0.05, whose average of layers, [layers, n, d], follows scores, [n], best.

    The search moves weight from one layer to another, from equal weights and from the best layer alone, on vectors as
    they are and on centred ones. Where equal weights are best, the result is None.
    """
    count = len(first)
    centre = (first.mean(axis=1, keepdims=True) + second.mean(axis=1, keepdims=True)) / 2
    best: tuple[float, Float64Array] | None = None
    for part in (_Similarity(first, second, scores), _Similarity(first - centre, second - centre, scores)):
        equal = np.full(count, 1 / count)
        known = part(equal) + _WORTH
        alone = max(np.eye(count), key=part)
        for start in (equal, alone):
            found = _climb(part, start)
            gain = found[0] - known
            if gain > 0 and (best is None or gain > best[0]):
                best = gain, found[1]
    return None if best is None else tuple(float(round(weight, 2)) for weight in best[1])


def _climb(score: _Similarity, start: Float64Array) -> tuple[float, Float64Array]:
    """Return the highest correlation that can be reached by moving weight, and its weights."""
    best, weights = score(start), start
    for step in _STEPS:
        improved = True
        while improved:
            improved = False
            for moved in _moves(weights, step):
                if (found := score(moved)) > best + 1e-9:
                    best, weights, improved = found, moved, True
    rounded = np.round(weights / _STEPS[-1]) * _STEPS[-1]
    rounded[int(rounded.argmax())] += 1 - rounded.sum()
    return score(rounded), rounded


def _moves(weights: Float64Array, step: float) -> Iterator[Float64Array]:
    for source, target in permutations(range(len(weights)), 2):
        amount = min(step, float(weights[source]))
        if amount > 0:
            moved = weights.copy()
            moved[source] -= amount
            moved[target] += amount
            yield moved
