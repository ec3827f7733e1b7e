"""Measure drift: how far new vectors are from those that a bundle's whitening was fitted on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from whiten_runtime.bundle.bundle import WHITENING_FILE, open_bundle
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.space import space_of
from whiten_runtime.errors import BundleError, UsageError
from whiten_runtime.hub import locate_bundle
from whiten_whitening.maps import WhiteningSpec, fit_map, read_map
from whiten_whitening.measures import HURTFUL_COSINE, Spread, checked_vectors
from whiten_whitening.moments import Float64Array, Moments

Verdict = Literal["close", "refit changes little", "drifting", "harmful", "too few"]

LEAST_VECTORS = 100
"""Number of vectors below which there is no verdict."""

LEAST_RATIO = 2
"""Vectors of the corpus per dimension, below which its covariance is too uncertain to compare with."""

_CLOSE_SHIFT, _CLOSE_RATIO = 0.05, 1.25
"""Largest mean shift, and largest factor by which the variance may differ from the expected one, up or down, of vectors
like the corpus."""

_LENGTH_ERROR = 0.01
"""Largest difference of the norms of all vectors from 1 that is taken as a sign that they were normalised.

Rounding moves a norm by 5e-4 in float16, 4e-3 in bfloat16, and some 6e-3 in int8. Norms that were not divided differ by
more: of 100 normal vectors of 4,096 coordinates, by up to 0.03 of their mean.
"""

_ROUNDING = 1e-12
"""Variance, relative to the square of the mean, at or below which vectors differ only by rounding."""

_ISO_GAIN, _COSINE_GAIN = 1.1, 0.05
"""Factor of the IsoScore, and fall of the average cosine, from which another fit is worth its while."""

_NULL = 1e-6
"""Variance, relative to the largest, at or below which a direction is left out."""


@dataclass(frozen=True)
class Drift:
    """Measures how far vectors are from a whitening's corpus.

    Attributes:
        verdict: "close": they are like the corpus. "drifting": they are not, but the map still spreads them better than
            no map does. "refit changes little": they are not, but the map is aligned with another bundle, and a fit on
            its corpus and on them would spread them little better. "harmful": the map does not spread them better, and
            similarities suffer. "too few": there are too few vectors, or too few in the corpus, to tell.
        n: number of vectors seen.
        corpus_n: number of vectors of the corpus.
        width: number of dimensions of a vector before whitening.
        mean_shift: distance of the two means, root mean square over the directions, in standard deviations of the
            corpus. The average contribution of chance is subtracted.
        spectrum_ratio: mean variance over the directions, in units of the corpus's; 1 for the corpus itself.
        expected_spectrum_ratio: value for other texts like the corpus. It is above 1, because no corpus shows all of
            its variance. Ratios from 1 to this value are as expected.
        iso_scores: IsoScore of the vectors without the map, within the dimensions that it keeps, and under it.
        average_cosines: their mean cosine without the map, and under it.
        of_texts: whether the bundle takes texts.
    """

    verdict: Verdict
    n: int
    corpus_n: int
    width: int
    mean_shift: float
    spectrum_ratio: float
    expected_spectrum_ratio: float
    iso_scores: tuple[float, float]
    average_cosines: tuple[float, float]
    of_texts: bool = True

    def __str__(self) -> str:
        what = "texts" if self.of_texts else "vectors"
        if self.corpus_n < LEAST_RATIO * self.width:
            return (
                f"the whitening was fitted on {self.corpus_n} {what}, too few for {self.width} dimensions to tell what "
                f"is like them; fit it on {LEAST_RATIO * self.width} or more (whiten refit)"
            )
        iso_scores = "IsoScore {:.3f} -> {:.3f}".format(*self.iso_scores)
        cosines = "average cosine {:.2f} -> {:.2f}".format(*self.average_cosines)
        again = "whiten refit" if self.of_texts else "whiten-export --from-vectors"
        return {
            "close": f"these {what} are like the corpus; the whitening fits them",
            "drifting": f"these {what} differ from the corpus, but the whitening still helps ({iso_scores})",
            "refit changes little": f"these {what} differ from the corpus, but fitting on both changes little",
            "harmful": f"the whitening makes similarities of these {what} worse ({iso_scores}, {cosines}; a whitening "
            f"that fits leaves an average cosine below {HURTFUL_COSINE}); fit it again on them ({again})",
            "too few": f"{self.n} {what} are too few to tell; give {LEAST_VECTORS} or more",
        }[self.verdict]


class DriftMonitor:
    """Measures the drift of vectors that a service computes anyway, batch by batch.

    Its memory does not depend on the number of vectors. Several monitors of one bundle can be merged. Not thread-safe:
    give each thread its own monitor.

    Args:
        bundle: a bundle that has a whitening: its directory, or a repository of the model hub.

    Attributes:
        manifest: manifest of the bundle.
        bundle_sha256: SHA-256 of the manifest's bytes, in hexadecimal.

    Raises:
        BundleError: not a bundle, an altered one, or one without a whitening.
    """

    def __init__(self, bundle: str | Path) -> None:
        opened = open_bundle(locate_bundle(bundle))
        self.manifest: Manifest = opened.manifest
        self.bundle_sha256 = opened.sha256
        self._map = read_map(opened)
        self._mean, self._weight = self._map.mean, self._map.weight
        self._centre = self._map(self._map.corpus_mean)
        variances, basis = np.linalg.eigh(self._weight.T @ self._map.covariance @ self._weight)
        spread = variances > max(_NULL * variances[-1], 0)
        if not spread.any() or self.manifest.whitening is None or self.manifest.whitening.n_samples < 2:
            raise BundleError(f"{opened.path}: its whitening has no spread to compare with; export the model again")
        self._to_units = basis[:, spread] / np.sqrt(variances[spread])
        self._from_units = (basis[:, spread] * np.sqrt(variances[spread])).T
        self.reset()

    def reset(self) -> None:
        """Discard all vectors."""
        self._moments = Moments.empty(self._to_units.shape[1])
        self._off_length = 0.0  # largest difference of the norm of a vector of `encode` from 1; none seen: 0

    def update(self, vectors: ArrayLike, unwhitened: bool = False) -> "DriftMonitor":
        """Add vectors.

        Args:
            vectors: vectors of `Encoder.encode`, all coordinates and not normalised, [n, k]; or vectors before
                whitening, of `Encoder.encode_both`, [n, d].
            unwhitened: True for vectors before whitening; required for bundles whose graph normalises.

        Raises:
            UsageError: the vectors have another shape, are not finite, or are int8, uint8 or bool.
        """
        if self.manifest.normalize and not unwhitened:
            raise UsageError(
                "this bundle's vectors have length 1 and do not tell how far from the mean they were; give those "
                "before whitening (Encoder.encode_both) with unwhitened=True"
            )
        width = len(self._mean) if unwhitened else len(self._centre)
        rows = checked_vectors(vectors, width)
        white = rows.astype(np.float64)
        if unwhitened:
            white = self._map(white)
            self._off_length = np.inf
        else:
            lengths = np.linalg.norm(white, axis=1)
            self._off_length = float(np.abs(lengths - 1).max(initial=self._off_length))
        self._moments = self._moments.merge(Moments.of((white - self._centre) @ self._to_units))
        return self

    def merge(self, other: "DriftMonitor") -> "DriftMonitor":
        """Add the vectors that another monitor of the same bundle has seen.

        Raises:
            UsageError: the other monitor is of another space, or of other statistics of its corpus.
        """
        mine, theirs = space_of(self.manifest), space_of(other.manifest)
        if mine != theirs:
            raise UsageError(
                f"this monitor's vectors are in space {mine}, the other's in space {theirs}: they cannot be compared; "
                "merge monitors of one bundle"
            )
        if other.manifest.files.get(WHITENING_FILE) != self.manifest.files.get(WHITENING_FILE):
            raise UsageError("the monitors are of bundles with different whitenings; their vectors cannot be compared")
        self._moments = self._moments.merge(other._moments)
        self._off_length = max(self._off_length, other._off_length)
        return self

    def report(self) -> Drift:
        """Compute how far the vectors seen so far are from the corpus.

        Raises:
            UsageError: fewer than 2 vectors were seen, or all were normalised.
        """
        moments, whitening, covariance = self._moments, self.manifest.whitening, self._covariance()
        assert whitening is not None
        rank, corpus_n = len(moments.mean), whitening.n_samples
        chance = (1 / moments.n + 1 / corpus_n) / rank
        ratio, expected = float(np.trace(covariance)) / rank, (corpus_n - 1) / max(corpus_n - rank - 2, 1)
        shift = max(float(moments.mean @ moments.mean) / rank - ratio * rank * chance, 0)
        noise = 2 * float(np.sqrt(2 * np.square(covariance).sum())) * chance  # two standard deviations of the shift
        close = shift - noise <= _CLOSE_SHIFT**2 and 1 / _CLOSE_RATIO <= ratio <= _CLOSE_RATIO * expected
        few = moments.n < LEAST_VECTORS or corpus_n < LEAST_RATIO * len(self._mean)
        before, after, refitted = self._spreads(covariance)
        differs = _verdict_of_others(before, after, refitted, whitening.beta > 0)
        return Drift(
            verdict="too few" if few else "close" if close else differs,
            n=moments.n,
            corpus_n=corpus_n,
            width=len(self._mean),
            mean_shift=float(np.sqrt(shift)),
            spectrum_ratio=ratio,
            expected_spectrum_ratio=expected,
            iso_scores=(before.iso_score, after.iso_score),
            average_cosines=(before.average_cosine, after.average_cosine),
            of_texts=self.manifest.input == "text",
        )

    def _covariance(self) -> Float64Array:
        """Return the covariance of the vectors seen so far in units of the corpus; zeros if they are all the same."""
        moments = self._moments
        if moments.n < 2:
            raise UsageError(f"{moments.n} vectors have no spread; give {LEAST_VECTORS} or more")
        if self._off_length <= _LENGTH_ERROR:
            raise UsageError(
                "all vectors have length 1, as if they were normalised; give those of encode() without "
                "normalize_embeddings"
            )
        covariance = moments.covariance
        same = np.trace(covariance) <= _ROUNDING * float(moments.mean @ moments.mean)
        return np.zeros_like(covariance) if same else covariance

    def _spreads(self, covariance: Float64Array) -> tuple[Spread, Spread, Spread | None]:
        """Return the spread of the vectors without the map, within the dimensions that it keeps; under it; refitted."""
        back, inverse = self._from_units, np.linalg.pinv(self._weight)
        mean, whitened = self._centre + self._moments.mean @ back, back.T @ covariance @ back
        raw_mean, raw = mean @ inverse + self._mean @ self._weight @ inverse, inverse.T @ whitened @ inverse
        refitted = self._refitted(mean @ inverse + self._mean, raw)
        return Spread.of(raw_mean, raw), Spread.of(mean, whitened), refitted

    def _refitted(self, mean: Float64Array, covariance: Float64Array) -> Spread | None:
        """Return the spread of vectors of these moments under a map that is fitted on the corpus and on them."""
        whitening = self.manifest.whitening
        assert whitening is not None
        if whitening.alignment is None or whitening.method == "none" or whitening.common_components:
            return None
        width = self._weight.shape[1]
        dimension = None if width == len(self._mean) else width
        corpus = Moments.of_covariance(whitening.n_samples, self._map.corpus_mean, self._map.covariance)
        both = corpus.merge(Moments.of_covariance(self._moments.n, mean, covariance))
        fitted = fit_map(both, WhiteningSpec(whitening.method, dimension, whitening.beta, whitening.shrinkage))
        return Spread.of(fitted(mean), fitted.weight.T @ covariance @ fitted.weight)


def _verdict_of_others(before: Spread, after: Spread, refitted: Spread | None, rescales: bool) -> Verdict:
    """Return the verdict on vectors unlike the corpus, by their spread without the map, under it and refitted."""
    if before.hurt_by(after, rescales):
        return "harmful"
    if refitted is None or refitted.iso_score >= _ISO_GAIN * after.iso_score:
        return "drifting"
    gains = refitted.average_cosine <= after.average_cosine - _COSINE_GAIN
    return "drifting" if gains else "refit changes little"
