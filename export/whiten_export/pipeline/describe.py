"""Describe parts of an export for its manifest: whitening, isotropy, parity, and versions of programs."""

import dataclasses
import platform
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from numpy.typing import NDArray

from whiten_export.corpus.statistics import Statistics
from whiten_runtime.bundle.manifest import AlignmentRecord, IsotropyRecord, ParityRecord, WhiteningRecord
from whiten_runtime.bundle.parity import Agreement
from whiten_runtime.inference.vectors import unit
from whiten_runtime.ort.providers import provider_name
from whiten_runtime.ort.session import SessionOptions
from whiten_whitening.isotropy import average_cosine, iso_score, partition_score
from whiten_whitening.maps import EIGENVALUE_FLOOR, WhiteningMap
from whiten_whitening.moments import Float64Array, Moments

_RECORDED = (
    "whiten",
    "torch",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
    "numpy",
)


def describe_whitening(
    fitted: WhiteningMap | None, statistics: Statistics | None, alignment: AlignmentRecord | None = None
) -> WhiteningRecord | None:
    """Describe for the manifest how a map was fitted, aligned with another, and how it changes isotropy."""
    if fitted is None or statistics is None:
        return None
    spec, sample = fitted.spec, statistics.sample.vectors
    before, after = measure_isotropy(fitted, statistics)
    return WhiteningRecord(
        method=spec.method if spec else "none",
        common_components=fitted.common_components,
        beta=spec.beta if spec else 0.0,
        shrinkage=fitted.alpha,
        shrinkage_estimator=spec.estimator if spec else "none",
        eigenvalue_floor=EIGENVALUE_FLOOR,
        rank=fitted.rank,
        n_samples=fitted.n_samples,
        settled=statistics.settled,
        corpus=statistics.corpus,
        sample=len(sample),
        isotropy_before=before,
        isotropy_after=after,
        alignment=alignment,
    )


def measure_isotropy(fitted: WhiteningMap, statistics: Statistics) -> tuple[IsotropyRecord, IsotropyRecord]:
    """Measure the isotropy of the corpus's vectors before and after a map.

    IsoScore is measured on all vectors. The average cosine is measured on all vectors before the map, where it can be
    streamed, and on the sample after it. The partition score is measured on the sample's unit vectors, because it
    depends on scale, which a whitening changes and cosines ignore.
    """
    moments, raw = statistics.moments, statistics.sample.vectors
    white = (raw.astype(np.float64) - fitted.mean) @ fitted.weight
    covariances = moments.covariance, moments.affine(fitted.mean, fitted.weight).covariance
    before = _isotropy(covariances[0], moments, raw)
    return before, _isotropy(covariances[1], Moments.of(white), white)


def _isotropy(covariance: Float64Array, moments: Moments, sample: NDArray[np.floating]) -> IsotropyRecord:
    return IsotropyRecord(
        iso_score=iso_score(covariance),
        average_cosine=average_cosine(moments),
        partition_score=partition_score(unit(sample.astype(np.float32))),
    )


def parity_record(reference: str, agreement: Agreement, options: SessionOptions | None = None) -> ParityRecord:
    """Describe an agreement for the manifest; `options` are those of the session, by default for the CPU."""
    provider = provider_name((options or SessionOptions()).providers[0])
    measured = dataclasses.asdict(agreement)
    measured.pop("norm_bias")  # the gate has bounded it
    return ParityRecord(reference=reference, provider=provider, **measured)


def versions() -> dict[str, str]:
    """Return the versions of the programs that take part in an export, as far as they are installed."""
    found = {"python": platform.python_version()}
    for name in _RECORDED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
