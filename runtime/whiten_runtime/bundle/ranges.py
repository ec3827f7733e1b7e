"""Compute the range of each coordinate, which 8 bits divide into steps, from what a bundle stores of its corpus."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.bundle import WHITENING_FILE, Bundle
from whiten_runtime.errors import BundleError

DEVIATIONS = 5.5
"""Standard deviations from the mean to either end of a range.

For normal numbers and 8 bits the mean square error is least at 4 (8.8e-5 of the variance), and for texts unlike the
corpus, whose coordinates have longer tails, at 6: all-MiniLM-L6-v2 (layers 1,6 and 0,1) on STS-B, not normalised, has
9.2e-4 and 1.2e-3 at 4, 1.6e-4 and 2.0e-4 at 6; normalised, 1.1e-4 and 1.3e-4 at 4, 1.9e-4 at 6. At 5.5, none of the
four is above 1.5 times its own least error.
"""

_ROWS = 64
"""Rows of a covariance that are read at a time."""


@dataclass(frozen=True)
class OutputMoments:
    """The moments of the corpus's finished vectors, before any division by their norms."""

    mean: NDArray[np.float64]  # float64 [k]
    variance: NDArray[np.float64]  # float64 [k]

    def ranges(self, width: int, normalized: bool) -> NDArray[np.float32]:
        """Return the lower and the upper end of each coordinate's range, float32 [2, width]."""
        mean, variance = self.mean[:width], self.variance[:width]
        reach = DEVIATIONS * np.sqrt(variance)
        ends = np.stack([mean - reach, mean + reach])
        norm = np.sqrt(np.sum(variance + np.square(mean)))
        return (ends / norm if normalized and norm > 0 else ends).astype(np.float32)


def read_moments(bundle: Bundle) -> OutputMoments | None:
    """Return the moments of a bundle's vectors over its corpus; None if it stores none.

    They follow from those before whitening, which the bundle stores with its map y = (x - mean) W: the mean of y is
    (corpus_mean - mean) W, and its covariance is Wᵀ Σ W. Whoever opens a bundle checks its files once more at the end,
    as these are read by path: a few rows of Σ at a time take 4 MB less memory than the whole file.
    """
    path = bundle.path / WHITENING_FILE
    if WHITENING_FILE not in bundle.manifest.files:
        return None
    from safetensors import SafetensorError, safe_open  # takes a moment, which a bundle without a whitening spares

    try:
        with bundle.opened(WHITENING_FILE), safe_open(path, "numpy") as arrays:
            if not {"mean", "W", "corpus_mean", "covariance"} <= set(arrays.keys()):
                return None
            mean, W, corpus_mean = (_float64(arrays.get_tensor(name)) for name in ("mean", "W", "corpus_mean"))
            covariance, variance = arrays.get_slice("covariance"), np.zeros(W.shape[1])
            for start in range(0, len(W), _ROWS):
                rows = slice(start, min(start + _ROWS, len(W)))
                variance += np.einsum("dk,dk->k", W[rows], _float64(covariance[rows]) @ W)
        moments = OutputMoments((corpus_mean - mean) @ W, variance.clip(0))
    except BundleError:
        raise
    except (OSError, SafetensorError, ValueError, LookupError, TypeError) as error:
        raise BundleError(f"{path}: is damaged ({error}); copy the bundle again") from None
    wanted = (bundle.manifest.dimension,)
    if moments.mean.shape != wanted or not np.isfinite([moments.mean, moments.variance]).all():
        raise BundleError(f"{path}: holds no moments of {wanted[0]} coordinates; copy the bundle again")
    return moments


def _float64(array: Any) -> NDArray[np.float64]:
    return np.asarray(array, np.float64)
