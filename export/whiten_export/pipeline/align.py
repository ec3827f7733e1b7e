"""Align a new whitening with the one of another bundle, so that its stored vectors stay usable."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.manifest import NESTED_METHODS, Manifest
from whiten_runtime.bundle.records import AlignmentRecord
from whiten_runtime.bundle.space import space_of
from whiten_runtime.errors import UsageError
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.reporter import Reporter
from whiten_whitening.alignment import align, fidelity
from whiten_whitening.maps import StoredMap, WhiteningMap, WhiteningSpec, read_map
from whiten_whitening.statistics import Origin, Statistics


@dataclass(frozen=True)
class Aligned:
    """Bundle that a whitening is aligned to: its stored vectors are to stay usable."""

    path: str | Path  # the bundle as it was named
    manifest: Manifest  # manifest of the bundle
    map: StoredMap  # whitening of the bundle


def open_aligned(path: str | Path) -> Aligned:
    """Read the bundle to align to: a directory, or a repository of the model hub."""
    bundle = open_bundle(locate_bundle(path))
    return Aligned(path, bundle.manifest, read_map(bundle))


def check_aligned(aligned_to: Aligned, manifest: Manifest, dimension: int) -> None:
    """Check that a new map for a draft, to this dimension, can be aligned to a bundle."""
    if difference := Origin.of(aligned_to.manifest).difference(Origin.of(manifest)):
        raise UsageError(
            f"{aligned_to.path} cannot be aligned to: it is of another model or of other layers ({difference})"
        )
    if aligned_to.manifest.dimension != dimension:
        raise UsageError(
            f"{aligned_to.path} has vectors of {aligned_to.manifest.dimension} dimensions, the new bundle of "
            f"{dimension}; give --dim {aligned_to.manifest.dimension}"
        )


def align_refit(path: str | Path, manifest: Manifest, spec: WhiteningSpec) -> tuple[Aligned, WhiteningSpec]:
    """Open the bundle that a refit of another bundle is aligned to; a nested map keeps as many dimensions as it."""
    aligned_to = open_aligned(path)
    if spec.dimension is None and spec.method in NESTED_METHODS:
        spec = replace(spec, dimension=aligned_to.manifest.dimension)
    check_aligned(aligned_to, manifest, spec.dimension or manifest.unwhitened_width)
    return aligned_to, spec


def align_with(
    aligned_to: Aligned, fitted: WhiteningMap, statistics: Statistics, report: Reporter
) -> tuple[WhiteningMap, AlignmentRecord]:
    """Turn a map onto that of a bundle, and report how well vectors of the bundle are found again."""
    old, new = aligned_to.map, align(fitted, aligned_to.map.mean, aligned_to.map.weight, statistics.moments)
    rows = statistics.sample.vectors.astype(np.float64)
    measured = fidelity(old(rows), new(rows))
    record = AlignmentRecord(
        space=space_of(aligned_to.manifest),
        median_cosine=measured.median_cosine,
        self_recall=measured.self_recall,
        sentences=measured.sentences,
    )
    said = f"stored vectors of {aligned_to.path} compared with new ones: {record.description}"
    if record.due:
        report.warn(f"{said}; compute the stored vectors again soon")
    else:
        report.stage(said)
    return new, record
