"""Round weights to int8, so that the errors of one row of weights are made up for by the rows after it."""

import numpy as np
from numpy.typing import NDArray

from whiten_whitening.linalg import cholesky

Float32Array = NDArray[np.float32]

TINY = 1e-12
"""Smallest scale: a column of zeros stays a column of zeros."""

_LEVELS = 127
"""Largest magnitude of an int8 weight."""

_DAMPING = 0.01
"""Share of the mean second moment that is added to each: the sample has fewer tokens than some layers have channels."""

_BLOCK = 64
"""Rows whose errors are collected before they are passed on, as one product of matrices."""


def column_scales(weight: Float32Array) -> Float32Array:
    """Return the scale of each column of weights [n, m], float32 [m]: its largest magnitude is 127 of them."""
    return np.asarray(np.maximum(np.abs(weight).max(axis=0), TINY) / _LEVELS, np.float32)


def quantize_columns(weight: Float32Array) -> tuple[NDArray[np.int8], Float32Array]:
    """Round to symmetric int8 with a scale per column: weight [n, m] ≈ int8 [n, m] * scale [m]."""
    scale = column_scales(weight)
    return np.rint(weight / scale).astype(np.int8), scale


def quantize_with_feedback(weight: Float32Array, gram: NDArray[np.floating]) -> tuple[NDArray[np.int8], Float32Array]:
    """Round to symmetric int8 like `quantize_columns`, so that x W changes little for activations x of a given kind.

    Rows are rounded in the order of their activations' size, and each is first moved by the errors of those before it,
    by the factors that minimise the expected squared error of x W (GPTQ, Frantar et al. 2023, in the form of LDLQ, Chee
    et al. 2023, equation 3, which needs no inverse).

    Args:
        weight: float32 [n, m].
        gram: sum of x^T x over activations x, [n, n].

    Returns:
        int8 [n, m], and the scale of each column, float32 [m].
    """
    scale = column_scales(weight)
    order = np.argsort(-np.diag(gram), kind="stable")
    feedback = _feedback(np.asarray(gram, np.float64)[np.ix_(order, order)])
    wanted = weight[order].astype(np.float64) / scale
    rounded, errors = np.empty_like(wanted), np.empty_like(wanted)
    for start in range(0, len(wanted), _BLOCK):
        stop = min(start + _BLOCK, len(wanted))
        moved = wanted[start:stop] + feedback[:start, start:stop].T @ errors[:start]
        for row in range(start, stop):
            target = moved[row - start] + feedback[start:row, row] @ errors[start:row]
            rounded[row] = np.clip(np.rint(target), -_LEVELS, _LEVELS)
            errors[row] = wanted[row] - rounded[row]
    columns = np.empty(weight.shape, np.int8)
    columns[order] = rounded
    return columns, scale


def _feedback(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the strictly upper triangular U of gram = (U + I) D (U + I)^T, D diagonal."""
    damped = gram + np.eye(len(gram)) * (_DAMPING * np.trace(gram) / len(gram) + TINY)
    upper = cholesky(damped[::-1, ::-1])[::-1, ::-1]
    unit = upper / np.diag(upper)
    return np.asarray(unit - np.eye(len(gram)))
