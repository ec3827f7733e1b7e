"""Decompose matrices with the same result for any number of BLAS threads.

OpenBLAS returns other bits of eigenvectors and singular vectors with other numbers of threads; products do not change.
"""

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

Float64Array = NDArray[np.float64]


def eigh(matrix: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return eigenvalues, ascending [d], and eigenvectors in columns [d, d], of a symmetric matrix [d, d]."""
    with threadpool_limits(1, "blas"):
        values, vectors = np.linalg.eigh(matrix)
    return values, vectors


def svd(matrix: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return U [m, m], singular values, descending, and Vᵀ [n, n], of a matrix [m, n]."""
    with threadpool_limits(1, "blas"):
        left, values, right = np.linalg.svd(matrix)
    return left, values, right


def cholesky(matrix: Float64Array) -> Float64Array:
    """Return the lower triangular L of a positive definite matrix L Lᵀ [d, d]."""
    with threadpool_limits(1, "blas"):
        lower = np.linalg.cholesky(matrix)
    return np.asarray(lower, np.float64)
