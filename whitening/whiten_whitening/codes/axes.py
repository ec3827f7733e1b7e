"""Find the axes along which vectors are coded: principal axes of a bundle's output, or of a sample of vectors."""

from dataclasses import dataclass

import numpy as np

from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.checks import whole_number
from whiten_runtime.errors import UsageError
from whiten_whitening.codes.levels import Bits
from whiten_whitening.maps import FLOAT32_ROUNDING, NULL_EIGENVALUE, spectrum
from whiten_whitening.moments import Float64Array
from whiten_whitening.stored import StoredMap

HALF = 0.5
"""Exponent for layers that were not tuned for similarity, whitened or not, and for codes of 1 bit.

Chosen on the pairs of STS-B dev, all-MiniLM-L6-v2. Layers 0 and 1, soft whitening: better than 0 with 4, 2 and 1 bits,
by 0.2 to 0.9. Layer 6: better by 2 with 1 bit, worse by 0.2 with 4 bits.
"""


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


def unit_moments(found: StoredMap) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return mean [k] and covariance [k, k] of a bundle's output y / |y|, and the covariance [d, k] of input and y.

    Moments of y / |y| are taken to be those of y / s, where s is the root mean square norm of y.
    """
    cross = found.covariance @ found.weight
    mean, covariance = (found.corpus_mean - found.mean) @ found.weight, found.weight.T @ cross
    norm = np.sqrt(np.trace(covariance) + mean @ mean)
    return mean / norm, covariance / norm**2, cross


def principal_axes(
    mean: Float64Array, covariance: Float64Array, cross: Float64Array, dims: int | None, beta: float
) -> Axes:
    """Return the leading axes of unit vectors u.

    The axes are the eigenvectors of cov(u, x) cov(x, u), where x is u before the whitening: with pca and zca, those of
    cov(u). After a full whitening, whose cov(u) has no axes, they come in the order of the variance before it.

    Args:
        mean: mean of u, [k].
        covariance: covariance of u, [k, k].
        cross: cov(x, u), up to a factor, [d, k].
        dims: number of leading axes; None for all along which u varies.
        beta: 0 keeps the variances of the coordinates, 1 makes them equal.

    Raises:
        UsageError: u varies along fewer axes.
    """
    basis = spectrum(cross.T @ cross)[1]
    variances = np.einsum("ij,ij->j", basis, covariance @ basis)
    varying = np.flatnonzero(variances > max(NULL_EIGENVALUE * variances.max(), FLOAT32_ROUNDING**2))
    kept = len(varying) if dims is None else whole_number("dims", dims, 1)
    if not len(varying):
        raise UsageError("all vectors have the same direction, so there are no axes; give different vectors")
    if not 0 < kept <= len(varying):
        raise UsageError(f"dims is {dims}; the vectors vary along {len(varying)} axes: wanted 1 to {len(varying)}")
    chosen = varying[:kept]
    deviations = np.sqrt(variances[chosen])
    return Axes(mean, basis[:, chosen] / deviations, deviations ** (1 - beta))


def beta_for(manifest: Manifest, bits: Bits) -> float:
    """Return the exponent for a bundle's output: 0 where its top layer was fine-tuned for similarity, else `HALF`.

    With 1 bit it is `HALF` always: the error of a sign is the larger, the larger the variance.
    """
    source = manifest.source
    tuned = source.sentence_similarity and source.num_hidden_layers in manifest.layers
    return 0.0 if tuned and bits > 1 else HALF
