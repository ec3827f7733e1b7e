"""Test which scales are chosen, and that they cover what was measured."""

import numpy as np
import pytest

from whiten_export.graph.int8.scales import FUNCTIONS, MOST, SYMMETRIC, Range, Scale, choose_scales

WIDTH = 96


def measured(rows: np.ndarray) -> Range:
    rows = rows.astype(np.float32)
    low, high = np.minimum(rows.min(axis=0), 0), np.maximum(rows.max(axis=0), 0)
    return Range(low, high, rows, rows.T @ rows)


@pytest.fixture(name="weight")
def _weight() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(WIDTH, 64)).astype(np.float32)


@pytest.fixture(name="rows")
def _rows() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(200, WIDTH)).astype(np.float32)


def relative_error(scale: Scale, rows: np.ndarray, weight: np.ndarray) -> float:
    got = scale.rounded(rows) @ scale.smoothed_weight(weight)
    return float(np.linalg.norm(got - rows @ weight) / np.linalg.norm(rows @ weight))


def test_tokens_of_like_size_get_a_constant(rows: np.ndarray, weight: np.ndarray) -> None:
    choice = choose_scales(measured(rows), weight, "LayerNormalization")
    assert choice.ratio < 1.6
    scale = choice.within(2.0)
    assert scale.constant is not None
    assert relative_error(scale, rows, weight) < 0.015


def test_tokens_of_unlike_size_get_a_scale_each(rows: np.ndarray, weight: np.ndarray) -> None:
    rows = rows * np.geomspace(1, 1000, len(rows))[:, None]
    choice = choose_scales(measured(rows), weight, "LayerNormalization")
    assert choice.ratio > MOST[0]
    assert choice.within(MOST[0]).constant is None
    assert relative_error(choice.within(MOST[0]), rows, weight) < 0.015


def test_nothing_measured_is_clipped_by_a_constant(rows: np.ndarray, weight: np.ndarray) -> None:
    rows = rows + 3
    scale = choose_scales(measured(rows), weight, None).within(np.inf)
    assert scale.constant is not None
    assert scale.zero_point < 100, "most values are above 0"
    factors = 1 if scale.factors is None else scale.factors
    assert np.abs(scale.rounded(rows) - rows / factors).max() <= scale.constant / 2 * 1.001


@pytest.mark.parametrize("most", [0.0, np.inf])
def test_outlier_channels_are_smoothed(rows: np.ndarray, weight: np.ndarray, most: float) -> None:
    rows[:, 7] *= 100
    scale = choose_scales(measured(rows), weight, None).within(most)
    assert scale.factors is not None
    plain = Scale(scale.zero_point, scale.constant and float(np.abs(rows).max() / 127))
    assert relative_error(scale, rows, weight) < relative_error(plain, rows, weight) / 2


def test_even_channels_are_not_smoothed(rows: np.ndarray, weight: np.ndarray) -> None:
    assert choose_scales(measured(rows), weight, None).token.factors is None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_scales_after_activation_functions(name: str, rows: np.ndarray, weight: np.ndarray) -> None:
    """They are always per token: a token of large values would leave few levels to the others."""
    scale = choose_scales(measured(rows), weight, name).within(np.inf)
    assert (scale.constant, scale.factors) == (None, None)
    assert scale.zero_point < SYMMETRIC


def test_no_value_of_gelu_is_clipped() -> None:
    from scipy.special import erf

    x = np.linspace(-6, 6, 20001)
    for values in (
        x * (1 + erf(x / np.sqrt(2))) / 2,
        x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    ):
        rows = np.stack([np.minimum(values, top) for top in (0.0, 0.1, 1.0, 6.0)]).astype(np.float32)
        scale = Scale(FUNCTIONS["Gelu"].zero_point, least=FUNCTIONS["Gelu"].least)
        step = np.maximum(rows.max(axis=1, keepdims=True), scale.least) / (255 - scale.zero_point)
        assert (np.abs(scale.rounded(rows) - rows) <= step / 2 * 1.001).all()
