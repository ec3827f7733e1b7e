"""Find the axes along which vectors are coded: principal axes of a bundle's output, or of a sample of vectors."""

from dataclasses import dataclass

import numpy as np

from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.checks import whole_number
from whiten_runtime.errors import UsageError
from whiten_whitening.maps import FLOAT32_ROUNDING, NULL_EIGENVALUE, spectrum
from whiten_whitening.moments import Float64Array
from whiten_whitening.stored import StoredMap

HALF = 0.5
"""Exponent for vectors that nothing has whitened and that were not tuned for similarity."""


@dataclass(frozen=True, eq=False)
class Axes:
    """Holds the affine map of unit vectors to coordinates of variance 1, z = (u - mean) W, and their scales.

    Attributes:
        mean: mean of the unit vectors, [k].
        weight: W, [k, dims].
        scale: factor of each coordinate in a decoded vector, [dims]: its standard deviation to the power of 1 - β.
    """

    mean: Float64Array
    weight: Float64Array
    scale: Float64Array


def output_moments(found: StoredMap) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return mean [k] and covariance [k, k] of a bundle's output, and the covariance [d, k] of its input with it."""
    cross = found.covariance @ found.weight
    return (found.corpus_mean - found.mean) @ found.weight, found.weight.T @ cross, cross


def principal_axes(
    mean: Float64Array, covariance: Float64Array, cross: Float64Array, dims: int | None, beta: float
) -> Axes:
    """Return the leading axes of vectors y that are divided by their norms.

    The axes are the eigenvectors of cov(y, x) cov(x, y), where x is y before the whitening: with pca and zca, those of
    cov(y). After a full whitening, whose cov(y) has no axes, they come in the order of the variance before it. Moments
    of y / |y| are taken to be those of y / s, where s is the root mean square norm.

    Args:
        mean: mean of y, [k].
        covariance: covariance of y, [k, k].
        cross: cov(x, y), [d, k].
        dims: number of leading axes; None for all along which y varies.
        beta: 0 keeps the variances of the coordinates, 1 makes them equal.

    Raises:
        UsageError: y varies along fewer axes.
    """
    norm = float(np.sqrt(np.trace(covariance) + mean @ mean))
    basis = spectrum(cross.T @ cross)[1]
    variances = np.einsum("ij,ij->j", basis, covariance @ basis)
    varying = np.flatnonzero(variances > max(NULL_EIGENVALUE * variances.max(), (FLOAT32_ROUNDING * norm) ** 2))
    kept = len(varying) if dims is None else whole_number("dims", dims, 1)
    if not 0 < kept <= len(varying):
        raise UsageError(f"dims is {dims}; the vectors vary along {len(varying)} axes: wanted 1 to {len(varying)}")
    chosen = varying[:kept]
    deviations = np.sqrt(variances[chosen]) / norm
    return Axes(mean / norm, basis[:, chosen] / deviations, deviations ** (1 - beta))


def beta_for(manifest: Manifest) -> float:
    """Return the exponent for a bundle's output, by the rule of `--whitening auto`.

    0 where a whitening has set the variances, or where the top layer was fine-tuned for similarity: codes then have the
    cosines of the vectors. `HALF` for other vectors, which are centred at most.
    """
    source, whitening = manifest.source, manifest.whitening
    tuned = source.sentence_similarity and source.num_hidden_layers in manifest.layers
    whitened = whitening is not None and whitening.method != "none" and whitening.beta > 0
    return 0.0 if tuned or whitened else HALF
