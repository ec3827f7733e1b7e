"""Align a new whitening with the one of another bundle, so that its stored vectors stay usable."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from whiten_export.corpus.statistics import Origin, Statistics
from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.manifest import NESTED_METHODS, Manifest
from whiten_runtime.bundle.records import AlignmentRecord
from whiten_runtime.bundle.space import space_of
from whiten_runtime.errors import UsageError
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.reporter import Reporter
from whiten_whitening.alignment import align, fidelity
from whiten_whitening.maps import StoredMap, WhiteningMap, WhiteningSpec, read_map


@dataclass(frozen=True)
class Reference:
    """Describes the bundle whose stored vectors are to stay usable."""

    path: str | Path  # the bundle as it was named
    manifest: Manifest  # manifest of the bundle
    map: StoredMap  # whitening of the bundle


def open_reference(path: str | Path) -> Reference:
    """Read the bundle to align with: a directory, or a repository of the model hub."""
    bundle = open_bundle(locate_bundle(path))
    return Reference(path, bundle.manifest, read_map(bundle.path, bundle.manifest))


def check_reference(reference: Reference, origin: Origin, dimension: int) -> None:
    """Check that a new map can be aligned with a reference."""
    if difference := Origin.of(reference.manifest).difference(origin):
        raise UsageError(
            f"{reference.path} cannot be aligned to: it is of another model or of other layers ({difference})"
        )
    if reference.manifest.dimension != dimension:
        raise UsageError(
            f"{reference.path} has vectors of {reference.manifest.dimension} dimensions, the new bundle of "
            f"{dimension}; give --dim {reference.manifest.dimension}"
        )


def align_refit(path: str | Path, manifest: Manifest, spec: WhiteningSpec) -> tuple[Reference, WhiteningSpec]:
    """Open the bundle that a refit of another bundle is aligned with; a nested map keeps as many dimensions as it."""
    reference = open_reference(path)
    if spec.dimension is None and spec.method in NESTED_METHODS:
        spec = replace(spec, dimension=reference.manifest.dimension)
    check_reference(reference, Origin.of(manifest), spec.dimension or manifest.unwhitened_width)
    return reference, spec


def align_with(
    reference: Reference, fitted: WhiteningMap, statistics: Statistics, report: Reporter
) -> tuple[WhiteningMap, AlignmentRecord]:
    """Turn a map onto that of a reference, and report how well vectors of the reference are found again."""
    old, new = reference.map, align(fitted, reference.map.mean, reference.map.weight, statistics.moments)
    rows = statistics.sample.vectors.astype(np.float64)
    found = fidelity((rows - old.mean) @ old.weight, (rows - new.mean) @ new.weight)
    record = AlignmentRecord(
        space=space_of(reference.manifest),
        median_cosine=found.median_cosine,
        self_recall=found.self_recall,
        sentences=found.sentences,
    )
    said = f"stored vectors of {reference.path} beside new ones: {record.description}"
    if record.due:
        report.warn(f"{said}; compute the stored vectors again soon")
    else:
        report.stage(said)
    return new, record
