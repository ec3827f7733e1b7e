"""Choose how each activation becomes uint8: with one constant scale, or with a scale for each token."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whiten_export.graph.int8.rounding import TINY, quantize_weights

Float32Array = NDArray[np.float32]

LEVELS, SYMMETRIC = 255, 128
"""Largest level of a uint8, and the level of 0 where values lie on both sides of it."""

MOST = (8.0, 2.0, 0.0)
"""Largest errors of a constant scale, over that of a scale per token, at which it is chosen; tried in turn.

On all-MiniLM-L6-v2 the ratio is 1.0 to 1.3 after LayerNormalization, 1.7 to 7.4 for contexts of attention. With all of
them constant, the mean cosine to float32 is .9993 and a run takes a fifth less; with those below 2, .9994 and a sixth.
"""

_FAINT = 1e-5
"""Lower bound of the magnitudes of channels from which factors are computed."""

_TOKEN_SMOOTHING, _CONSTANT_SMOOTHING = (0.6,), (0.6, 0.7, 0.8)
"""Exponents of the smoothing that are tried. Beyond 0.8, other texts than the calibration's leave a constant range."""

_WORTH = 0.9
"""Error with smoothing over that without it, above which it is left out: it costs a pass over the activation."""

_MARGIN = 1.1
"""Range of a constant scale over the measured one."""


@dataclass(frozen=True)
class Function:
    """Describes an activation function before a product."""

    zero_point: int  # level of 0 among the 256 of a uint8: nearly all levels are for values above 0
    # magnitude below which that of a token is not taken, so that no value of the function is below level 0
    least: float


FUNCTIONS = {"Gelu": Function(24, 0.1701 * (LEVELS - 24) / 24), "Relu": Function(0, TINY)}
"""Activation functions with a lower bound. That of GELU, exact or by tanh, is at -0.75: -0.16997 and -0.17004."""


@dataclass(frozen=True)
class Range:
    """Holds what was measured of an activation."""

    low: Float32Array  # smallest value of each channel, and 0 at most, float32 [n]
    high: Float32Array  # largest value of each channel, and 0 at least, float32 [n]
    rows: Float32Array  # a sample of tokens, float32 [r, n]
    gram: Float32Array  # sum of x^T x over tokens x, float32 [n, n]


@dataclass(frozen=True)
class Scale:
    """Describes how an activation becomes uint8."""

    zero_point: int  # level of 0
    constant: float | None = None  # scale of all tokens; None for one for each token, from its own largest magnitude
    # numbers by which each channel is divided before, and the weights are multiplied, float32 [n]; None for none
    # (SmoothQuant, Xiao et al. 2022, equation 4)
    factors: Float32Array | None = None
    least: float = TINY  # magnitude below which that of a token is not taken

    def smoothed_weight(self, weight: Float32Array) -> Float32Array:
        """Return weights [n, m] multiplied by the factors."""
        return weight if self.factors is None else weight * self.factors[:, None]

    def rounded(self, rows: Float32Array) -> Float32Array:
        """Return rows [r, n], divided by the factors, as int8 arithmetic sees them."""
        if self.factors is not None:
            rows = rows / self.factors
        scale = self.constant or self._of_tokens(rows)
        levels = np.clip(np.rint(rows / scale) + self.zero_point, 0, LEVELS)
        return np.asarray((levels - self.zero_point) * scale, np.float32)

    def _of_tokens(self, rows: Float32Array) -> Float32Array:
        measured = np.abs(rows) if self.zero_point == SYMMETRIC else rows
        largest = np.maximum(measured.max(axis=1, keepdims=True), self.least)
        return np.asarray(largest / (LEVELS - self.zero_point), np.float32)


@dataclass(frozen=True)
class Choice:
    """Holds the scales of an activation."""

    token: Scale  # best scale per token
    constant: Scale | None  # best constant scale; None after an activation function
    ratio: float  # error of the constant scale over that of the scale per token; infinite without one

    def within(self, most: float) -> Scale:
        """Return the constant scale if its error is at most `most` times the other's, else that per token."""
        return self.constant if self.constant is not None and self.ratio <= most else self.token


def choose_scales(measured: Range, weight: Float32Array, function: str | None, smoothing: bool = True) -> Choice:
    """Return the scales with which the products of an activation lose least, by the error on the sample of tokens."""
    exact = measured.rows @ weight
    heaviest = np.abs(weight).max(axis=1)
    known = FUNCTIONS.get(function or "")
    if known is not None:
        return Choice(Scale(known.zero_point, least=known.least), None, np.inf)

    def best(plain: Scale, smoothed: Iterable[Scale]) -> tuple[float, Scale]:
        without = _error(plain, measured.rows, weight, exact)
        if not smoothing:
            return without, plain
        least, scale = min(((_error(scale, measured.rows, weight, exact), scale) for scale in smoothed), key=_first)
        return (least, scale) if least < _WORTH * without else (without, plain)

    tokens = (Scale(SYMMETRIC, factors=factors) for factors in _factors(measured, heaviest, _TOKEN_SMOOTHING))
    token_error, token = best(Scale(SYMMETRIC), tokens)
    constants = (_constant(measured, factors) for factors in _factors(measured, heaviest, _CONSTANT_SMOOTHING))
    constant_error, constant = best(_constant(measured, None), constants)
    return Choice(token, constant, constant_error / max(token_error, TINY))


def _constant(measured: Range, factors: Float32Array | None) -> Scale:
    low, high = (bound if factors is None else bound / factors for bound in (measured.low, measured.high))
    least, largest = _MARGIN * min(float(low.min()), 0.0), _MARGIN * max(float(high.max()), 0.0)
    step = float(np.float32(max((largest - least) / LEVELS, TINY)))
    return Scale(int(np.clip(np.rint(-least / step), 0, LEVELS)), step, factors)


def _factors(measured: Range, heaviest: Float32Array, exponents: tuple[float, ...]) -> Iterator[Float32Array]:
    """Yield m^a / w^(1 - a) for each exponent a: m the largest magnitude of a channel, w that of its weights."""
    magnitude = np.maximum(np.maximum(-measured.low, measured.high), _FAINT)
    for exponent in exponents:
        yield np.asarray(magnitude**exponent / np.maximum(heaviest, _FAINT) ** (1 - exponent), np.float32)


def _error(scale: Scale, rows: Float32Array, weight: Float32Array, exact: Float32Array) -> float:
    """Return the root mean square over tokens of the error of x W, over the norm of x W."""
    columns, column_scale = quantize_weights(scale.smoothed_weight(weight))
    difference = scale.rounded(rows) @ (columns * column_scale) - exact
    size = np.maximum(np.square(exact).sum(axis=1), TINY)
    return float(np.sqrt(np.mean(np.square(difference).sum(axis=1) / size)))


def _first(pair: tuple[float, Scale]) -> float:
    return pair[0]
