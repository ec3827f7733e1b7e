"""Build the manifest of an export."""

import dataclasses
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whiten_export.corpus.statistics import Statistics
from whiten_export.pipeline.choose_whitening import Decision
from whiten_export.pipeline.plan import Plan
from whiten_runtime.bundle.bundle import file_record, list_files
from whiten_runtime.bundle.manifest import FORMAT_VERSION, Manifest
from whiten_runtime.bundle.parity import Agreement
from whiten_runtime.bundle.records import AlignmentRecord, IsotropyRecord, ParityRecord, WhiteningRecord
from whiten_runtime.bundle.space import with_space
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


def describe_export(plan: Plan, decision: Decision, opset: int, stage: Path) -> Manifest:
    """Return the manifest of the files in `stage`, without parity."""
    graph, fitted = plan.recipe.graph, decision.fitted
    composition, own, entry = plan.composition, plan.own, plan.checkpoint.entry
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=plan.target.absolute().name,
        source=plan.model.record,
        input="text",
        layers=plan.layers,
        layer_weights=composition.layer_weights,
        pooling=plan.pooling,
        include_prompt=composition.include_prompt,
        modules=tuple(map(str, composition.modules)),
        unwhitened_dimension=None if plan.width == plan.model.record.hidden_size else plan.width,
        prompts=dict(plan.prompts.texts),
        default_prompt_name=plan.prompts.default,
        truncation_side=plan.model.tokenizer.truncation_side,
        similarity_fn_name=plan.similarity_fn_name,
        matryoshka_dimensions=entry.dimensions if entry is not None and plan.keeps_modules and not fitted else (),
        route=None if own is None else own.route,
        whitening=describe_whitening(fitted, decision.statistics, decision.alignment),
        choice=decision.choice,
        normalize=plan.normalize,
        outputs=graph.outputs if fitted else "whitened",
        vectors=graph.vector_type,
        dimension=plan.width if fitted is None else fitted.weight.shape[1],
        max_seq_length=plan.max_seq_length,
        pad_token_id=plan.model.tokenizer.pad_token_id,
        precision=graph.precision,
        target=graph.target,
        opset=opset,
        versions=versions(),
        parity=None,
        files={name: file_record(stage / name) for name in list_files(stage)},
    )
    return with_space(manifest)
