"""Measure the range of a graph's activations over texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from whiten_export.graph.files import save_with_outputs
from whiten_export.graph.int8.attention import value_product
from whiten_export.graph.int8.linear import bias_of, width_of
from whiten_export.graph.int8.scales import Float32Array, Range
from whiten_runtime.inference.batching import pad_batch, plan_batches
from whiten_runtime.ort.session import SessionOptions, create_session

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
    """Yield the range of each activation over texts. Padding is ignored.

    The range of an attention's context is that of its values: it is a weighted mean of them, whatever the weights.
    """
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
