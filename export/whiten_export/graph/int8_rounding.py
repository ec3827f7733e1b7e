"""Round weights to int8, so that no kernel can saturate, and errors of one row are made up for by the rows after it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.manifest import LARGEST_PAIR
from whiten_whitening.moments import cholesky

Float32Array = NDArray[np.float32]
Columns = tuple[NDArray[np.int8], Float32Array]
"""Weights in int8 [n, m], and the scale of each column [m]."""

TINY = 1e-12
"""Smallest scale: a column of zeros stays a column of zeros."""

_LEVELS = 127
"""Largest magnitude of an int8 weight."""

_WIDER = tuple(1 + step / 10 for step in range(11))
"""Scales that are tried, over the one at which a column's largest magnitude is 127; at 2, no pair has to be cut."""

_DAMPING = 0.01
"""Share of the mean second moment that is added to each: the sample has fewer tokens than some layers have channels."""

ROWS = 1 << 14
"""Number of rows of a table of embeddings that are taken at once: copies of a large one would take its memory again."""

_CHANNELS = 1024
"""Channels whose Gram matrix is factorised to estimate a loss: time grows with their cube, and six are compared."""

_BLOCK = 32
"""Rows whose errors are collected before they are passed on, as one product of matrices."""


def quantize_columns(table: Float32Array) -> Columns:
    """Round the columns of a table that is looked up, [n, m], to symmetric int8 with a scale each: nothing is added."""
    scale = _largest(table)
    return np.rint(table / scale).astype(np.int8), scale


def quantize_weights(weight: Float32Array) -> Columns:
    """Round weights of a product [n, m] to symmetric int8, pairs within `LARGEST_PAIR`, with a scale per column."""
    scale = _pair_scales(weight, np.ones(len(weight)))
    return _cut_pairs(np.rint(weight / scale)).astype(np.int8), scale


def quantize_with_feedback(weight: Float32Array, gram: NDArray[np.floating]) -> Columns:
    """Round to symmetric int8 like `quantize_weights`, so that x W changes little for activations x of a given kind.

    Rows are rounded in the order of their activations' size, and each is first moved by the errors of those before it,
    by the factors that minimise the expected squared error of x W (GPTQ, Frantar et al. 2023, in the form of LDLQ, Chee
    et al. 2023, equation 3). The second row of a pair is kept within what `LARGEST_PAIR` leaves to it.
    """
    scale = _pair_scales(weight, np.diag(gram).astype(np.float64))
    order = np.argsort(-np.diag(gram), kind="stable")
    place = np.argsort(order)
    feedback = _feedback(gram[np.ix_(order, order)])
    wanted = weight[order].astype(np.float64) / scale
    rounded, errors = np.empty_like(wanted), np.empty_like(wanted)
    for start in range(0, len(wanted), _BLOCK):
        stop = min(start + _BLOCK, len(wanted))
        moved = wanted[start:stop] + feedback[:start, start:stop].T @ errors[:start]
        for row in range(start, stop):
            level = rounded[row]
            np.rint(moved[row - start] + feedback[start:row, row] @ errors[start:row], out=level)
            np.clip(level, -_LEVELS, _LEVELS, out=level)
            other = order[row] ^ 1
            if other < len(wanted) and place[other] < row:
                pair = level + rounded[place[other]]
                level -= pair - np.clip(pair, -LARGEST_PAIR, LARGEST_PAIR)
            np.subtract(wanted[row], level, out=errors[row])
    columns = np.empty(weight.shape, np.int8)
    columns[order] = rounded
    return columns, scale


def expected_losses(
    weights: Sequence[Float32Array], gram: NDArray[np.floating]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Estimate the sum of squared errors of x W for each W of an activation: with feedback, and without.

    A rounding error has the variance 1 / 12 of a level. Feedback leaves D of the diagonal of the Gram matrix (Chee et
    al. 2023, theorem 1). Of more than `_CHANNELS` channels, that is estimated from some.
    """
    some = gram
    if len(gram) > _CHANNELS:
        picked = spread(len(gram), _CHANNELS)
        some = gram[np.ix_(picked, picked)]
    levels = np.asarray([np.square(_largest(weight), dtype=np.float64).sum() for weight in weights]) / 12
    remainder = np.square(np.diag(_factor(some))).sum() * (len(gram) / len(some))
    return levels * remainder, levels * float(np.trace(gram))


def largest_pair(columns: NDArray[np.int8]) -> int:
    """Return the largest sum of magnitudes of weights 2i and 2i + 1 of a column of int8 [n, m] that have one sign."""
    first, second = columns[:-1:2].astype(np.int16), columns[1::2].astype(np.int16)
    return int(np.abs(np.where(first * second > 0, first + second, 0)).max(initial=0))


def _pair_scales(weight: Float32Array, energy: NDArray[np.floating]) -> Float32Array:
    """Return the scale of each column, [m], at which rounding and cutting pairs lose least together.

    Rounding errors have the variance 1 / 12 of a level. Of a pair that is cut, each weight loses half of what is over.
    """
    largest = _largest(weight)
    first, second = (weight[start : len(weight) // 2 * 2 : 2] / largest for start in (0, 1))
    sums = np.where(first * second > 0, np.abs(first + second), 0)
    rows, columns = np.nonzero(sums > LARGEST_PAIR)
    heavy, counts = sums[rows, columns], (energy[rows * 2] + energy[rows * 2 + 1]) / 4
    losses = []
    for factor in _WIDER:
        cut = counts * np.square(np.maximum(heavy - LARGEST_PAIR * factor, 0))
        losses.append(energy.sum() * factor**2 / 12 + np.bincount(columns, cut, len(largest)))
    return np.asarray(largest * np.asarray(_WIDER, np.float32)[np.argmin(losses, axis=0)], np.float32)


def _cut_pairs(levels: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return whole levels [n, m] with pairs beyond `LARGEST_PAIR` made smaller, both by half of what is too much."""
    even = len(levels) // 2 * 2
    pairs = levels[:even].reshape(even // 2, 2, levels.shape[1])
    over = np.where(pairs.prod(axis=1) > 0, np.maximum(np.abs(pairs).sum(axis=1) - LARGEST_PAIR, 0), 0)
    cut = np.stack([np.ceil(over / 2), np.floor(over / 2)], axis=1)
    shrunk = (np.sign(pairs) * (np.abs(pairs) - cut)).reshape(even, levels.shape[1])
    return np.concatenate([shrunk, levels[even:]])


def _largest(weight: Float32Array) -> Float32Array:
    """Return the scale of each column, [m], at which its largest magnitude is 127."""
    return np.asarray(np.maximum(np.abs(weight).max(axis=0), TINY) / _LEVELS, np.float32)


def _feedback(gram: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the strictly upper triangular U of gram = (U + I) D (U + I)^T, D diagonal."""
    upper = _factor(gram)
    upper /= np.diag(upper).copy()
    np.fill_diagonal(upper, 0)
    return upper


def _factor(gram: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the upper triangular (U + I) D^(1/2) of the damped gram."""
    damped = np.array(gram, np.float64)[::-1, ::-1]
    np.fill_diagonal(damped, np.diag(damped) + _DAMPING * np.trace(damped) / len(damped) + TINY)
    return np.ascontiguousarray(cholesky(damped)[::-1, ::-1])


def spread(count: int, wanted: int) -> NDArray[np.intp]:
    """Return indices of `wanted` of `count` rows, from the first to the last."""
    return np.linspace(0, count - 1, wanted).round().astype(np.intp)
