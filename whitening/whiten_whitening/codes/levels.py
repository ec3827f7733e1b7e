"""Quantise normal coordinates to the levels of the least mean squared error, which are fixed numbers.

Max, "Quantizing for minimum distortion" (IRE Transactions on Information Theory, 1960), table I, with more digits: each
level is the mean of its cell, each threshold lies half-way between two levels.
"""

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import UsageError
from whiten_whitening.moments import Float64Array

Bits = Literal[1, 2, 4, 8]
"""Bits of a coordinate: 1, 2 and 4 have fixed levels; 8 is int8 with one scale for each vector."""

_POSITIVE: dict[int, tuple[float, ...]] = {
    1: (0.7978845608028654,),
    2: (0.4527800346364921, 1.510417608499096),
    4: (
        *(0.1283950298511473, 0.38804829949029135, 0.6567591185324648, 0.942340456486963),
        *(1.2562311973471778, 1.6180463860218828, 2.0690172265313866, 2.7325895709951595),
    ),
}


def check_bits(bits: int) -> Bits:
    """Return the bits.

    Raises:
        UsageError: no such number of bits.
    """
    for allowed in get_args(Bits):
        if not isinstance(bits, bool) and bits == allowed:
            return allowed  # type: ignore[no-any-return]
    raise UsageError(f"bits is {bits!r}; wanted 1, 2, 4 or 8 a coordinate")


def levels(bits: Bits) -> Float64Array:
    """Return the levels for a normal coordinate of variance 1, ascending, [2 ** bits]."""
    positive = np.asarray(_POSITIVE[bits])
    return np.concatenate([-positive[::-1], positive])


def thresholds(bits: Bits) -> Float64Array:
    """Return the bounds between the cells of the levels, [2 ** bits - 1]; the one in the middle is 0."""
    found = levels(bits)
    return (found[:-1] + found[1:]) / 2


def nearest_levels(coordinates: Float64Array, bits: Bits) -> NDArray[np.uint8]:
    """Return the number of the level nearest to each coordinate; half-way between two, the upper one."""
    return np.searchsorted(thresholds(bits), coordinates, side="right").astype(np.uint8)


def expected_noise(means: Float64Array, variances: Float64Array, bits: Bits) -> Float64Array:
    """Return the mean squared error of the levels for normal coordinates of given means and variances, [n]."""
    bounds = np.concatenate([[-np.inf], thresholds(bits), [np.inf]])
    deviations = np.sqrt(np.maximum(variances, np.finfo(np.float64).tiny))
    below = (bounds[:-1] - means[:, None]) / deviations[:, None]
    above = (bounds[1:] - means[:, None]) / deviations[:, None]
    share = _probability(above) - _probability(below)
    first = _density(below) - _density(above)
    second = share + _weighted_density(below) - _weighted_density(above)
    offset = means[:, None] - levels(bits)
    cells = deviations[:, None] ** 2 * second + 2 * offset * deviations[:, None] * first + offset**2 * share
    return np.asarray(cells.sum(axis=1))


def outside(means: Float64Array, variances: Float64Array, bits: Bits) -> Float64Array:
    """Return the share of normal coordinates of given means and variances beyond the outermost levels, [n]."""
    last, deviations = levels(bits)[-1], np.sqrt(np.maximum(variances, np.finfo(np.float64).tiny))
    return np.asarray(1 - _probability((last - means) / deviations) + _probability((-last - means) / deviations))


_probability = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), otypes=[np.float64])


def _density(x: Float64Array) -> Float64Array:
    return np.asarray(np.exp(-0.5 * np.square(x)) / math.sqrt(2 * math.pi))


def _weighted_density(x: Float64Array) -> Float64Array:
    finite = np.where(np.isfinite(x), x, 0.0)
    return np.asarray(finite * _density(x))
