"""Read the whitening that a bundle stores: its map, and the covariance that the map was fitted on."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from whiten_runtime.bundle.bundle import WHITENING_FILE
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.errors import BundleError
from whiten_whitening.moments import Float64Array


@dataclass(frozen=True)
class StoredMap:
    """Holds the map y = (x - mean) W of a bundle.

    Attributes:
        mean: mean that is subtracted, [d].
        weight: W, [d, k].
        corpus_mean: mean of the corpus's vectors before whitening, [d].
        covariance: covariance of the corpus's vectors before whitening, [d, d].
    """

    mean: Float64Array
    weight: Float64Array
    corpus_mean: Float64Array
    covariance: Float64Array


def read_map(root: Path, manifest: Manifest) -> StoredMap:
    """Read the map of a bundle.

    Raises:
        BundleError: the bundle has no whitening, or its file is damaged.
    """
    if manifest.whitening is None or WHITENING_FILE not in manifest.files:
        raise BundleError(f"{root}: has no whitening; whiten refit gives it one")
    try:
        arrays: dict[str, NDArray[np.float64]] = load_file(root / WHITENING_FILE)
        found = tuple(arrays[name] for name in ("mean", "W", "corpus_mean", "covariance"))
    except (OSError, SafetensorError, KeyError) as error:
        raise BundleError(f"{root / WHITENING_FILE}: is damaged or too old ({error}); export the model again") from None
    d, k = manifest.unwhitened_width, manifest.dimension
    shapes = [array.shape for array in found]
    if shapes != [(d,), (d, k), (d,), (d, d)] or not all(np.isfinite(array).all() for array in found):
        raise BundleError(
            f"{root / WHITENING_FILE}: holds shapes {shapes} or no numbers, unlike its manifest; export again"
        )
    return StoredMap(*found)
