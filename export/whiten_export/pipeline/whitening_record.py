"""Describe a fitted whitening in the manifest."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.records import AlignmentRecord, IsotropyRecord, WhiteningRecord
from whiten_runtime.inference.vectors import unit
from whiten_whitening.isotropy import average_cosine, iso_score, partition_score
from whiten_whitening.maps import EIGENVALUE_FLOOR, WhiteningMap
from whiten_whitening.moments import Float64Array, Moments
from whiten_whitening.statistics import Statistics


def with_whitening(
    manifest: Manifest, fitted: WhiteningMap, statistics: Statistics, alignment: AlignmentRecord | None = None
) -> Manifest:
    """Return a manifest with how a map was fitted and aligned with another, and how it changes isotropy."""
    spec, sample = fitted.spec, statistics.sample.vectors
    before, after = measure_isotropy(fitted, statistics)
    whitening = WhiteningRecord(
        method=spec.method if spec else "none",
        common_components=fitted.common_components,
        beta=spec.beta if spec else 0.0,
        shrinkage=fitted.alpha,
        shrinkage_estimator=spec.estimator if spec else "none",
        eigenvalue_floor=EIGENVALUE_FLOOR,
        rank=fitted.rank,
        n_samples=fitted.n_samples,
        corpus=statistics.corpus,
        sample=len(sample),
        isotropy_before=before,
        isotropy_after=after,
        alignment=alignment,
    )
    return msgspec.structs.replace(
        manifest, whitening=whitening, dimension=fitted.weight.shape[1], matryoshka_dimensions=()
    )


def measure_isotropy(fitted: WhiteningMap, statistics: Statistics) -> tuple[IsotropyRecord, IsotropyRecord]:
    """Measure the isotropy of the corpus's vectors before and after a map.

    IsoScore is measured on all vectors. The average cosine is measured on all vectors before the map, where it can be
    streamed, and on the sample after it. The partition score is measured on the sample's unit vectors, because it
    depends on scale, which a whitening changes and cosines ignore.
    """
    moments, raw = statistics.moments, statistics.sample.vectors
    white = fitted(raw.astype(np.float64))
    covariances = moments.covariance, moments.affine(fitted.mean, fitted.weight).covariance
    before = _isotropy(covariances[0], moments, raw)
    return before, _isotropy(covariances[1], Moments.of(white), white)


def _isotropy(covariance: Float64Array, moments: Moments, sample: NDArray[np.floating]) -> IsotropyRecord:
    return IsotropyRecord(
        iso_score=iso_score(covariance),
        average_cosine=average_cosine(moments),
        partition_score=partition_score(unit(sample.astype(np.float32))),
    )
