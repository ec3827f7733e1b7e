"""Align a new whitening with the one of another bundle, so that its stored vectors stay usable."""

from dataclasses import dataclass
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

    def dimension(self, asked: int | None, spec: WhiteningSpec | None) -> int | None:
        """Return the number of dimensions to keep: as asked for, else, of a nested or a chosen map, the bundle's."""
        nested = spec is None or spec.method in NESTED_METHODS
        return self.manifest.dimension if asked is None and nested else asked


def open_aligned(path: str | Path | None) -> Aligned | None:
    """Read the bundle to align to: a directory, or a repository of the model hub; None for none."""
    if path is None:
        return None
    bundle = open_bundle(locate_bundle(path))
    return Aligned(path, bundle.manifest, read_map(bundle))


def check_aligned(aligned_to: Aligned, manifest: Manifest, dimension: int) -> None:
    """Check that a new map for a draft, to this dimension, can be aligned to a bundle."""
    theirs = aligned_to.manifest
    if theirs.input == manifest.input == "vectors":  # the files differ; the user says that one model computed both
        difference, ours = None, manifest.unwhitened_width
        if theirs.unwhitened_width != ours:
            difference = f"vectors of {theirs.unwhitened_width} and {ours} dimensions"
    else:
        difference = Origin.of(theirs).difference(Origin.of(manifest))
    if difference:
        raise UsageError(
            f"{aligned_to.path} cannot be aligned to: it is of another model or of other layers ({difference})"
        )
    if theirs.dimension != dimension:
        raise UsageError(
            f"{aligned_to.path} has vectors of {theirs.dimension} dimensions, the new bundle of {dimension}; give "
            f"--dim {theirs.dimension}"
        )


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
