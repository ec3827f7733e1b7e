"""Vectors of whole numbers from -127 to 127, each divided by a scale of its own: those of `"vectors": "int8"`.

A vector y becomes 127 y / max |y|, rounded to the nearest whole number, and to the even one of two that are as near.
Its direction stays, up to the rounding; its length is lost. Cosines need no scale, so none is stored.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.errors import UsageError

STEPS = 127
"""Magnitude of the largest coordinate of every vector but that of zeros."""

LEAST_MAGNITUDE = 1e-30
"""Smallest divisor: a vector is divided by its largest magnitude or by this, so that a vector of zeros stays one."""


def to_steps(vectors: ArrayLike) -> NDArray[np.float64]:
    """Scale each vector, [n, k], so that its largest magnitude is 127, in float64; nothing is rounded."""
    rows = np.asarray(vectors, np.float64)
    largest = np.maximum(np.abs(rows).max(axis=1, keepdims=True), LEAST_MAGNITUDE)
    return np.asarray(rows / largest * STEPS)


def as_int8(vectors: ArrayLike) -> NDArray[np.int8]:
    """Convert vectors of a bundle whose manifest says `"vectors": "int8"` to int8. The numbers stay the same."""
    given = np.asarray(vectors)
    if given.dtype == np.int8:
        return given
    with np.errstate(invalid="ignore"):  # NaN and infinity become some number, which differs from them
        rows = given.astype(np.int8)
    wrong = _wrong(given, rows)
    if wrong.any():
        raise UsageError(
            f"a vector holds {given[wrong][0]!s}, but int8 takes whole numbers from -{STEPS} to {STEPS}; give vectors "
            "of a bundle exported with --vectors int8, not normalised"
        )
    return rows


def _wrong(given: NDArray[Any], rows: NDArray[np.int8]) -> NDArray[np.bool_]:
    return np.asarray((given != rows) | (np.abs(given) > STEPS))
