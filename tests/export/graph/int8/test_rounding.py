"""Test the rounding of weights: to the nearest, and with feedback of errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whiten_export.graph.int8_rounding import (
    Columns,
    largest_pair,
    quantize_columns,
    quantize_weights,
    quantize_with_feedback,
)
from whiten_runtime.bundle.manifest import LARGEST_PAIR


def test_each_column_has_its_own_scale() -> None:
    weight = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32) * [1, 10, 100, 1e-3, 1, 0]
    columns, scale = quantize_columns(weight.astype(np.float32))
    assert columns.dtype == np.int8
    assert np.abs(columns).max(axis=0).tolist() == [127, 127, 127, 127, 127, 0]
    np.testing.assert_allclose(columns * scale, weight, atol=float(scale.max()) / 2)


def correlated(generator: np.random.Generator, tokens: int, width: int) -> np.ndarray:
    """Return activations as after GELU: a few common directions, and a few large channels."""
    mixed = generator.normal(size=(tokens, 8)) @ generator.normal(size=(8, width))
    x = mixed + 0.3 * generator.normal(size=(tokens, width))
    x[:, 5] *= 20
    return np.asarray(x, np.float32)


def test_feedback_halves_the_error_on_correlated_activations() -> None:
    generator = np.random.default_rng(0)
    x, weight = correlated(generator, 500, 200), generator.normal(size=(200, 30)).astype(np.float32)
    other = correlated(np.random.default_rng(0), 500, 200)[250:]
    errors = []
    for columns, scale in (quantize_weights(weight), quantize_with_feedback(weight, x[:250].T @ x[:250])):
        errors.append(np.linalg.norm(other @ (columns * scale) - other @ weight))
    assert errors[1] < errors[0] / 2


def test_feedback_is_the_plain_recursion() -> None:
    """The blocks compute what Chee et al. define row by row: W_k + sum over j < k of U[j, k] (W_j - rounded W_j)."""
    generator = np.random.default_rng(1)
    x, weight = correlated(generator, 400, 150), generator.normal(size=(150, 4)).astype(np.float32)
    x *= np.linspace(3, 1, 150, dtype=np.float32)
    gram = (x.T @ x).astype(np.float64)
    columns, scale = quantize_with_feedback(weight, gram)
    order = np.argsort(-np.diag(gram), kind="stable")
    damped = gram[np.ix_(order, order)] + np.eye(150) * 0.01 * np.trace(gram) / 150
    want = np.zeros((150, 4))
    wanted = weight[order] / scale.astype(np.float64)
    for row in range(150):
        # The best move of row k for given errors before it: a regression on the rows that are still free.
        rest = np.arange(row, 150)
        moves = np.linalg.solve(damped[np.ix_(rest, rest)], damped[np.ix_(rest, np.arange(row))])
        target = wanted[row] + moves[0] @ (wanted[:row] - want[:row]) if row else wanted[row]
        want[row] = np.clip(np.rint(target), -127, 127)
    assert np.mean(columns[order] != want) < 0.01  # ties of the last bits


def saturated(columns: np.ndarray, activations: np.ndarray) -> np.ndarray:
    """Return uint8 [t, n] times int8 [n, m] as `vpmaddubsw` adds: two neighbouring products in 16 bits, saturating."""
    products = activations.astype(int)[:, :, None] * columns.astype(int)
    padded = np.pad(products, ((0, 0), (0, len(columns) % 2), (0, 0)))
    return np.asarray(np.clip(padded[:, ::2] + padded[:, 1::2], -32768, 32767).sum(axis=1))


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 90),
    st.integers(1, 5),
    st.integers(0, 3),
    st.sampled_from([0.3, 1.0, 3.0]),
    st.integers(0, 2**32 - 1),
)
def test_no_kernel_can_saturate(rows: int, columns: int, tokens: int, tail: float, seed: int) -> None:
    """Of any weights, the heavy tailed and the equal among them, and of the activations that are worst for them."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(tokens, rows)).astype(np.float32)
    weight = (np.sign(drawn := generator.normal(size=(rows, columns))) * np.abs(drawn) ** tail).astype(np.float32)
    worst = np.concatenate([np.full((1, rows), 255), generator.choice([0, 255], (20, rows))]).astype(np.uint8)
    for levels, scale in (quantize_weights(weight), quantize_with_feedback(weight, x.T @ x)):
        assert levels.dtype == np.int8
        assert np.abs(levels.astype(int)).max() <= 127
        assert largest_pair(levels) <= LARGEST_PAIR
        np.testing.assert_array_equal(saturated(levels, worst), worst.astype(int) @ levels.astype(int))
        least = np.maximum(np.abs(weight).max(axis=0), 1e-12) / 127
        assert (scale >= least * 0.999).all()
        assert (scale <= least * 2.001).all()


def test_pairs_are_measured() -> None:
    columns = np.array([[100, -100, 127], [28, 29, -127], [127, 0, 1]], np.int8)
    assert largest_pair(columns) == 128
    assert (saturated(columns, np.full((1, 3), 255)) == 255 * columns.astype(int).sum(axis=0)).all()
    columns[1] = [29, -29, 1]
    assert largest_pair(columns) == 129
    assert (saturated(columns, np.full((1, 3), 255)) != 255 * columns.astype(int).sum(axis=0)).tolist() == [
        [True, True, False]
    ]


@pytest.mark.parametrize("tail", [1.0, 2.0])
def test_the_bound_costs_little(tail: float) -> None:
    """The error of x W grows by less than a third, where halving all weights would double it."""
    generator = np.random.default_rng(3)
    x, drawn = correlated(generator, 600, 128), generator.normal(size=(128, 40))
    weight = (np.sign(drawn) * np.abs(drawn) ** tail).astype(np.float32)

    def error(made: Columns) -> float:
        return float(np.linalg.norm(x @ (made[0] * made[1]) - x @ weight))

    assert error(quantize_weights(weight)) < 4 / 3 * error(quantize_columns(weight))
