"""Measure the activations of a graph on sentences, on texts without sense, and on far texts."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from whiten_export.graph.attention import save_lowered, value_product
from whiten_export.graph.int8.rounding import TINY, spread
from whiten_export.graph.products import bias_of
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
    save_lowered(model, [str(value.name) for value in (*values, *bounds.values())], path)
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
