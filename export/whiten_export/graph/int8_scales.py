"""Measure the activations of a graph on texts, and choose their scales by that and by the weights of their products."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from whiten_export.graph.attention import save_lowered, value_product
from whiten_export.graph.build import bias_of
from whiten_export.graph.int8_rounding import TINY, expected_losses, spread
from whiten_runtime.inference.batching import pad_batch, plan_batches
from whiten_runtime.ort.session import SessionOptions, create_session
from whiten_runtime.reporter import Reporter

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]

FAINT_SHARE = 0.01
"""Lower bound of the magnitude of a channel over that of the others: one that is silent on the texts of the calibration
must not fill the range of a token when it speaks."""

_TOKENS = 1 << 13
"""Tokens of sentences that go into samples and Gram matrices, and up to twice as many: those of long texts are more."""

_RARE = 4
"""One in so many tokens of texts without sense goes into samples and Gram matrices: they matter for the range."""

_ROWS, FAR_ROWS = 4, 4
"""Tokens of each run that go into the sample, and tokens of each far text."""


@dataclass(frozen=True)
class Range:
    """Holds what was measured of an activation."""

    low: Float32Array  # smallest value of each channel, and 0 at most, float32 [n]
    high: Float32Array  # largest value of each channel, and 0 at least, float32 [n]
    rows: Float32Array  # a sample of tokens, float32 [r, n]
    gram: Float32Array  # sum of x^T x over tokens x, rounded as in `_Meter`, float32 [n, n]
    far: Float32Array  # tokens of far and bare texts, `FAR_ROWS` of each text, float32 [t * FAR_ROWS, n]


@dataclass(frozen=True)
class CalibrationTexts:
    """Holds the texts on which ranges are measured, and those by which constant scales are chosen."""

    sentences: Sequence[Sequence[int]]  # token ids of real sentences
    wide: Sequence[Sequence[int]]  # token ids of texts without sense, chosen for range
    far: Sequence[Sequence[int]]  # token ids of texts far from both, on which graphs are compared too
    bare: Sequence[Sequence[int]]  # token ids of texts without special tokens
    pad_token_id: int  # id of the padding token

    @property
    def rows(self) -> list[Sequence[int]]:
        return [*self.sentences, *self.wide, *self.far, *self.bare]


def measure_ranges(
    model: ir.Model,
    values: Sequence[ir.Value],
    texts: CalibrationTexts,
    options: SessionOptions,
    folder: Path,
    report: Reporter,
) -> Iterator[tuple[ir.Value, Range]]:
    """Yield the range of each activation over the tokens of texts; that of an attention's context is its values'."""
    if not values:  # as of word vectors, which are no products
        return
    path = folder / "calibration.onnx"
    bounds = {value: bound for value in values if (bound := _bound(value)) is not None}
    save_lowered(model, [*values, *bounds.values()], path)
    session = create_session(path, options)
    meters = {value: _Meter(folder / f"rows.{index}") for index, value in enumerate(values)}
    often = max(1, sum(map(len, texts.sentences)) // _TOKENS)
    with report.bar("tokens", sum(map(len, texts.rows))) as advance:
        for rows, every in ((texts.sentences, often), (texts.wide, _RARE), ([*texts.far, *texts.bare], 0)):
            for batch in plan_batches([len(row) for row in rows]):
                feed = pad_batch([rows[index] for index in batch], texts.pad_token_id)
                real = feed["attention_mask"].astype(bool)
                outputs = [_tokens(array, real) for array in session.run(None, feed)]
                limits = dict(zip(bounds, outputs[len(values) :], strict=True))
                for value, tokens in zip(values, outputs, strict=False):
                    if every:
                        meters[value].add(tokens, limits.get(value, tokens), every)
                    else:
                        meters[value].add_far(tokens, real.sum(axis=1))
                advance(int(real.sum()))
    del session
    for value in values:
        yield value, meters.pop(value).result()


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


_LEVELS_OF_CHANNEL = 1 << 12
"""Levels, of either sign, to which the activations of a Gram matrix are rounded."""


_AT_ONCE = 1024
"""Tokens of a product that is added to a Gram matrix."""


class _Meter:
    """Collects the range of one activation; its tokens wait in files.

    A Gram matrix is of whole numbers, each channel's in steps of a power of two: their products and sums are exact in
    float64. So all kernels, and all numbers of threads, give the same bits. Rounding with feedback would make other
    weights of a Gram matrix that differs in its last bits, and these another network.
    """

    def __init__(self, folder: Path) -> None:
        self._low: Float32Array | float = 0.0
        self._high: Float32Array | float = 0.0
        self._steps: Float64Array | None = None
        self._folder = folder
        folder.mkdir()

    def add(self, tokens: Float32Array, limits: Float32Array, every: int) -> None:
        """Add the tokens of a batch, of which one in `every` matters for more than the range."""
        self._low, self._high = np.minimum(self._low, limits.min(axis=0)), np.maximum(self._high, limits.max(axis=0))
        some = tokens[::every]
        if self._steps is None:
            self._steps = _steps(some)
        levels = np.rint(some / self._steps)
        fits = np.abs(levels).max(initial=0) <= np.iinfo(np.int16).max
        self._append("levels", levels.astype(np.int16 if fits else np.float32))
        self._append("rows", some[spread(len(some), min(_ROWS, len(some)))])

    def add_far(self, tokens: Float32Array, lengths: NDArray[np.int64]) -> None:
        """Add a few tokens of each text of a batch."""
        if len(tokens) == lengths.sum():
            starts = np.cumsum(lengths) - lengths
            rows = [start + spread(length, FAR_ROWS) for start, length in zip(starts, lengths, strict=True)]
            self._append("far", tokens[np.concatenate(rows)])
        else:  # an activation that is not of tokens, as of relative positions
            self._append("far", tokens[spread(len(tokens), FAR_ROWS * len(lengths))])

    def result(self) -> Range:
        """Return what was measured, and remove the files."""
        assert self._steps is not None
        levels, rows, far = map(self._stored, ("levels", "rows", "far"))
        shutil.rmtree(self._folder)
        gram = np.zeros((levels.shape[1], levels.shape[1]))
        for start in range(0, len(levels), _AT_ONCE):
            exact = levels[start : start + _AT_ONCE].astype(np.float64)
            gram += exact.T @ exact
        gram *= self._steps[:, None]
        gram *= self._steps
        low, high = (np.asarray(bound, np.float32) for bound in (self._low, self._high))
        return Range(low, high, rows, gram.astype(np.float32), far)

    def _append(self, name: str, array: NDArray[np.generic]) -> None:
        with (self._folder / name).open("ab") as file:
            np.save(file, array)

    def _stored(self, name: str) -> Any:
        """Return the arrays of a file as one."""
        arrays, path = [], self._folder / name
        with path.open("rb") as file:
            while file.tell() < path.stat().st_size:
                arrays.append(np.load(file))
        return np.concatenate(arrays)


def _steps(tokens: Float32Array) -> Float64Array:
    """Return the step of each channel, [n]: a power of two by which its largest magnitude has `_LEVELS_OF_CHANNEL`."""
    magnitude = np.abs(tokens).max(axis=0).astype(np.float64)
    magnitude = np.maximum(magnitude, max(FAINT_SHARE * float(magnitude.max()), TINY))
    return np.asarray(np.exp2(np.floor(np.log2(magnitude))) / _LEVELS_OF_CHANNEL)


LEVELS, SYMMETRIC = 255, 128
"""Largest level of a uint8, and the level of 0 where values lie on both sides of it."""

_AFFORDABLE = 0.02
"""Squared relative errors that constant scales may add to those of a far text, in all."""

_FAINT = 1e-5
"""Lower bound of the magnitudes of channels from which factors are computed; `FAINT_SHARE` is one over the median."""

_DECIMALS = 5
"""Decimals of the costs of a constant scale, by which it is chosen: what processors round apart is less."""

_SMOOTHING = (0.6, 0.7, 0.8, 0.9, 1.0)
"""Exponents of the smoothing that are tried. In all-mpnet-base-v2, 1 is best for queries, keys and values (cosine .9995
with only these in int8, .9986 with 0.6), and 0.6 to 0.8 for the first product after attention."""

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

    def smoothed_gram(self, gram: Float32Array) -> Float32Array:
        """Return the Gram matrix [n, n] of activations divided by the factors."""
        return gram if self.factors is None else gram / np.outer(self.factors, self.factors)

    def divided(self, rows: Float32Array) -> Float32Array:
        """Return rows [r, n] divided by the factors."""
        return rows if self.factors is None else rows / self.factors

    def rounded(self, rows: Float32Array) -> Float32Array:
        """Return rows [r, n], divided by the factors, as int8 arithmetic sees them."""
        rows = self.divided(rows)
        scale = self.constant or self._of_tokens(rows)
        levels = np.clip(np.rint(rows / scale) + self.zero_point, 0, LEVELS)
        return np.asarray((levels - self.zero_point) * scale, np.float32)

    def lost(self, rows: Float32Array) -> Float32Array:
        """Return what int8 arithmetic adds to rows [r, n] before the products with weights that are not smoothed."""
        lost = self.rounded(rows) - self.divided(rows)
        return lost if self.factors is None else lost * self.factors

    def _of_tokens(self, rows: Float32Array) -> Float32Array:
        measured = np.abs(rows) if self.zero_point == SYMMETRIC else rows
        largest = np.maximum(measured.max(axis=1, keepdims=True), self.least)
        return np.asarray(largest / (LEVELS - self.zero_point), np.float32)


@dataclass(frozen=True)
class Choice:
    token: Scale  # best scale per token, for weights rounded with feedback
    nearest: Scale  # best scale per token, for weights rounded to the nearest
    constant: Scale | None  # best constant scale; None after Gelu or Relu
    # what the constant scale costs each far or bare text: squared relative error less that of `token`, float64 [t]
    costs: Float64Array


def choose_scales(
    measured: Range, weights: Sequence[Float32Array], function: str | None, smoothing: bool = True
) -> Choice:
    """Return the scales with which the products of an activation lose least, by the error of each on average."""
    known = FUNCTIONS.get(function or "")
    if known is not None:
        scale = Scale(known.zero_point, least=known.least)
        return Choice(scale, scale, None, np.zeros(0))
    energies = [max(_energy(measured.gram, weight), TINY) for weight in weights]
    factors = [None, *_factors(measured, weights)] if smoothing else [None]
    tokens = [Scale(SYMMETRIC, factors=each) for each in factors]
    constants = [_constant(measured, each) for each in factors]
    rounding = np.split(_errors([*tokens, *constants], measured.rows, weights).mean(axis=1), 2)
    of_tokens: list[tuple[float, Scale]] = []
    of_nearest: list[tuple[float, Scale]] = []
    of_constants: list[tuple[float, Scale]] = []
    for token, constant, token_error, constant_error in zip(tokens, constants, *rounding, strict=True):
        smoothed = list(map(token.smoothed_weight, weights))
        feedback, plain = (
            float(np.mean(np.divide(losses, energies)))
            for losses in expected_losses(smoothed, token.smoothed_gram(measured.gram))
        )
        of_tokens.append((token_error + feedback, token))
        of_nearest.append((token_error + plain, token))
        of_constants.append((constant_error + feedback, constant))
    token, constant = _best(of_tokens), _best(of_constants)
    far_constant, far_token = _errors([constant, token], measured.far, weights)
    costs = (far_constant - far_token).reshape(-1, FAR_ROWS).mean(axis=1).round(_DECIMALS)
    return Choice(token, _best(of_nearest), constant, costs)


def choose_constants(choices: Mapping[str, Choice]) -> set[str]:
    """Return the activations that take their constant scale, by the largest of their costs, the cheapest first.

    One is left out by which a far text would lose more than `_AFFORDABLE` together with those before it.
    """
    chosen: set[str] = set()
    total: Float64Array | float = 0.0
    worst = {name: choice.costs.max() for name, choice in choices.items() if choice.constant is not None}
    for name in sorted(worst, key=worst.__getitem__):
        if (total + choices[name].costs).max() <= _AFFORDABLE:
            total = total + choices[name].costs
            chosen.add(name)
    return chosen


def _best(errors: list[tuple[float, Scale]]) -> Scale:
    """Return the scale of the least error; the first, without smoothing, unless smoothing is worth its pass."""
    least, scale = min(errors, key=lambda pair: pair[0])
    return scale if least < _WORTH**2 * errors[0][0] else errors[0][1]


def _constant(measured: Range, factors: Float32Array | None) -> Scale:
    low, high = (bound if factors is None else bound / factors for bound in (measured.low, measured.high))
    least, largest = _MARGIN * min(float(low.min()), 0.0), _MARGIN * max(float(high.max()), 0.0)
    step = float(np.float32(max((largest - least) / LEVELS, TINY)))
    return Scale(int(np.clip(np.rint(-least / step), 0, LEVELS)), step, factors)


def _factors(measured: Range, weights: Sequence[Float32Array]) -> Iterator[Float32Array]:
    """Yield m^a / w^(1 - a) for each exponent a: m the largest magnitude of a channel, w that of its weights."""
    magnitude = np.maximum(-measured.low, measured.high).astype(np.float64)
    magnitude = np.maximum(magnitude, max(_FAINT, FAINT_SHARE * float(np.median(magnitude))))
    heaviest = np.max([np.abs(weight).max(axis=1) for weight in weights], axis=0).astype(np.float64)
    heaviest = np.maximum(heaviest, _FAINT)
    for exponent in _SMOOTHING:
        yield np.asarray(magnitude**exponent / heaviest ** (1 - exponent), np.float32)


def _errors(scales: Sequence[Scale], rows: Float32Array, weights: Sequence[Float32Array]) -> Float64Array:
    """Return the squared error of x W over that of x W, a mean over products, for each scale and row, float64 [s, r].

    Products are float32: which scale is best, and the decimals of a cost, do not depend on their last bits.
    """
    lost = np.concatenate([scale.lost(rows) for scale in scales])
    errors = np.zeros(len(lost))
    for weight in weights:
        sizes = np.maximum(_squares(rows @ weight), TINY)
        errors += _squares(lost @ weight) / np.tile(sizes, len(scales)) / len(weights)
    return errors.reshape(len(scales), -1)


def _squares(rows: Float32Array) -> Float64Array:
    """Return |x|² of each row, [r]."""
    return np.asarray(np.square(rows, dtype=np.float64).sum(axis=1))


def _energy(gram: Float32Array, weight: Float32Array) -> float:
    """Return the sum of |x W|² over the tokens x of a Gram matrix."""
    return float(np.multiply(gram @ weight, weight, dtype=np.float64).sum())
