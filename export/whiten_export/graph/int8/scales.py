"""Choose the scales of activations, from their ranges on sentences and on texts without sense."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from whiten_export.graph.builder import save_with_outputs
from whiten_export.graph.int8.rounding import TINY, quantize_weights
from whiten_export.graph.products import bias_of, value_product, width_of
from whiten_runtime.inference.batching import pad_batch, plan_batches
from whiten_runtime.ort.session import SessionOptions, create_session

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


_GRAM_BYTES = 512 << 20
"""Memory of the Gram matrices that are held at once; a larger network is measured in several passes."""

_RARE = 4
"""One in so many tokens of texts without sense goes into samples and Gram matrices: they matter for the range."""

_ROWS = 4
"""Tokens of each run that go into the sample."""


@dataclass(frozen=True)
class CalibrationTexts:
    """Holds the texts on which ranges are measured."""

    sentences: Sequence[Sequence[int]]  # token ids of real sentences
    wide: Sequence[Sequence[int]]  # token ids of texts without sense, chosen for range
    pad_token_id: int  # id of the padding token


def measure_ranges(
    model: ir.Model, values: Sequence[ir.Value], texts: CalibrationTexts, options: SessionOptions, path: Path
) -> Iterator[tuple[ir.Value, Range]]:
    """Yield the range of each activation over the tokens of texts; that of an attention's context is its values'."""
    for group in _groups(values):
        bounds = {value: bound for value in group if (bound := _bound(value)) is not None}
        save_with_outputs(model, [*group, *bounds.values()], path)
        session = create_session(path, options)
        meters = {value: _Meter() for value in group}
        for rows, every in ((texts.sentences, 1), (texts.wide, _RARE)):
            for batch in plan_batches([len(row) for row in rows]):
                feed = pad_batch([rows[index] for index in batch], texts.pad_token_id)
                real = feed["attention_mask"].astype(bool)
                found = [_tokens(array, real) for array in session.run(None, feed)]
                limits = dict(zip(bounds, found[len(group) :], strict=True))
                for value, tokens in zip(group, found, strict=False):
                    meters[value].add(tokens, limits.get(value, tokens), every)
        del session
        for value in group:
            yield value, meters.pop(value).range()


def _groups(values: Sequence[ir.Value]) -> Iterator[list[ir.Value]]:
    group: list[ir.Value] = []
    size = 0
    for value in values:
        needed = 4 * width_of(value) ** 2
        if group and size + needed > _GRAM_BYTES:
            yield group
            group, size = [], 0
        group.append(value)
        size += needed
    if group:
        yield group


def _bound(value: ir.Value) -> ir.Value | None:
    product = value_product(value)
    if product is None:
        return None
    added = bias_of(product)
    return (added or product).outputs[0]


def _tokens(array: Float32Array, real: NDArray[np.bool_]) -> Float32Array:
    """Return the rows of an activation that belong to tokens; also if it is [tokens, n] already, as in GPT-2."""
    rows = array.reshape(-1, array.shape[-1])
    return rows[real.reshape(-1)] if len(rows) == real.size else rows


class _Meter:
    """Collects the range of one activation."""

    def __init__(self) -> None:
        self._low: Float32Array | float = 0.0
        self._high: Float32Array | float = 0.0
        self._gram: Float32Array | float = 0.0
        self._rows: list[Float32Array] = []

    def add(self, tokens: Float32Array, limits: Float32Array, every: int) -> None:
        self._low, self._high = np.minimum(self._low, limits.min(axis=0)), np.maximum(self._high, limits.max(axis=0))
        some = tokens[::every]
        self._gram = self._gram + some.T @ some
        self._rows.append(some[np.linspace(0, len(some) - 1, min(_ROWS, len(some))).round().astype(int)])

    def range(self) -> Range:
        low, high, gram = (np.asarray(part, np.float32) for part in (self._low, self._high, self._gram))
        return Range(low, high, np.concatenate(self._rows), gram)
