"""Check what a coder is given, and divide vectors by their norms."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.checks import described
from whiten_runtime.errors import UsageError
from whiten_runtime.inference.vectors import check_no_codes
from whiten_whitening.moments import Float64Array


def unit_rows(rows: NDArray[np.generic]) -> Float64Array:
    """Return rows divided by their norms, float64 [n, k]; rows of zeros stay."""
    found = rows.astype(np.float64)
    found /= _or_one(np.abs(found).max(axis=1, initial=0, keepdims=True))  # else squares may overflow
    found /= _or_one(np.linalg.norm(found, axis=1, keepdims=True))
    return found


def _or_one(values: Float64Array) -> Float64Array:
    return np.where(values > 0, values, 1.0)


def checked_beta(beta: Any) -> float:
    """Return the exponent.

    Raises:
        UsageError: not a number from 0 to 1.
    """
    if isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 <= beta <= 1:
        raise UsageError(f"beta is {beta!r}; wanted a number from 0 (rotated) to 1 (whitened)")
    return float(beta)


def checked_vectors(vectors: ArrayLike, width: int | None = None) -> NDArray[np.generic]:
    """Return vectors as an array [n, k]; one vector [k] becomes [1, k].

    Raises:
        UsageError: not finite real numbers [n, k], of another width, or of the type of codes: int8, uint8 or bool.
    """
    wanted = "[n, k]" if width is None else f"[n, {width}], all coordinates of the bundle's vectors"
    try:
        rows = np.atleast_2d(np.asarray(vectors))
    except ValueError:
        raise UsageError(f"vectors are not rows of one length; wanted numbers {wanted}") from None
    check_no_codes("vectors", rows)
    if rows.ndim != 2 or rows.dtype.kind not in "fiu" or rows.shape[1] != (width or rows.shape[1]) or not rows.shape[1]:
        raise UsageError(f"vectors are {described(rows)}; wanted numbers {wanted}")
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise UsageError(f"vectors[{int(finite.argmin())}] is not finite; leave it out")
    return rows


def check_similarity(manifest: Manifest) -> None:
    """Check that a bundle compares vectors by their directions.

    Raises:
        UsageError: it does not.
    """
    similarity = manifest.similarity_fn_name
    if similarity not in (("cosine", "dot", "euclidean") if manifest.normalize else ("cosine",)):
        raise UsageError(
            f"the model of this bundle compares by {similarity}, which needs the norms of its vectors; codes keep "
            "their directions alone: store float32, or use Coder.fit if cosines will do"
        )
