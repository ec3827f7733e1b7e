"""Test the weights of layers that are learned from pairs with scores."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from whiten_whitening.layer_weights import learn_weights


def layers(count: int, n: int = 400, d: int = 12) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(count)
    return generator.normal(size=(count, n, d)), generator.normal(size=(count, n, d))


def cosines(first: np.ndarray, second: np.ndarray, weights: tuple[float, ...]) -> np.ndarray:
    a, b = (np.tensordot(weights, rows, 1) for rows in (first, second))
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("weights", [(0.4, 0.6), (0.9, 0.1), (0.2, 0.0, 0.8), (0.0, 1.0), (0.15, 0.35, 0.05, 0.45)])
def test_weights_that_made_the_scores_are_found(weights: tuple[float, ...]) -> None:
    first, second = layers(len(weights))
    scores = cosines(first, second, weights)
    found = learn_weights(first, second, scores)
    assert found is not None
    assert sum(found) == pytest.approx(1)
    assert found == pytest.approx(weights, abs=0.051)
    assert spearmanr(cosines(first, second, found), scores).statistic > 0.99


def test_equal_weights_are_kept_where_they_are_best() -> None:
    first, second = layers(3)
    assert learn_weights(first, second, cosines(first, second, (1 / 3, 1 / 3, 1 / 3))) is None


def test_weights_never_do_worse_than_equal_ones() -> None:
    for seed in range(5):
        first, second = layers(3, n=60)
        scores = np.random.default_rng(seed).normal(size=60)
        found = learn_weights(first, second, scores)
        if found is not None:
            centre = (first.mean(1, keepdims=True) + second.mean(1, keepdims=True)) / 2
            centred = (first - centre, second - centre)
            best = [
                spearmanr(cosines(*rows, found), scores).statistic
                - spearmanr(cosines(*rows, (1 / 3,) * 3), scores).statistic
                for rows in ((first, second), centred)
            ]
            assert max(best) > 0
