"""Test the rounding of weights: to the nearest, and with feedback of errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whiten_export.graph.int8.rounding import quantize_columns, quantize_with_feedback


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
    for columns, scale in (quantize_columns(weight), quantize_with_feedback(weight, x[:250].T @ x[:250])):
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


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 90), st.integers(1, 5), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_any_shape_and_rank(rows: int, columns: int, tokens: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(tokens, rows)).astype(np.float32)
    weight = generator.normal(size=(rows, columns)).astype(np.float32)
    levels, scale = quantize_with_feedback(weight, x.T @ x)
    assert levels.dtype == np.int8
    assert np.abs(levels.astype(int)).max() <= 127
    if not tokens:
        np.testing.assert_array_equal(levels, quantize_columns(weight)[0])
    assert scale == pytest.approx(np.maximum(np.abs(weight).max(axis=0), 1e-12) / 127)
