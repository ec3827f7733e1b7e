"""Turn a new whitening onto the one of another bundle, so that its stored vectors stay usable.

A rotation on the right of W leaves a whitening a whitening, and changes no cosine between two vectors of the same map.
The rotation is that of the orthogonal Procrustes problem (Schönemann, "A generalized solution of the orthogonal
Procrustes problem", 1966): with y = (x - μ) W and the old z = (x - μ₀) W₀, the orthogonal R that minimises Σ |y R - z|²
is U Vᵀ, where U S Vᵀ is the singular value decomposition of Σ yᵀ z.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.manifest import NESTED_METHODS, Manifest
from whiten_runtime.bundle.records import AlignmentRecord
from whiten_runtime.bundle.space import space_of
from whiten_runtime.errors import UsageError
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import StoredMap, WhiteningMap, WhiteningSpec, read_map
from whiten_whitening.moments import Float64Array, Moments, svd
from whiten_whitening.similarity import cosines, unit
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
    """Check that a new map for a draft, to this dimension, can be aligned to a bundle.

    Where weights are in other files, only the network, once it is loaded, tells whether they are the same.
    """
    theirs = aligned_to.manifest
    if theirs.input == manifest.input == "vectors":  # the files differ; the user says that one model computed both
        difference, ours = None, manifest.unwhitened_width
        if theirs.unwhitened_width != ours:
            difference = f"vectors of {theirs.unwhitened_width} and {ours} dimensions"
    else:
        old, new = Origin.of(theirs), Origin.of(manifest)
        if new.parameters_sha256 is None:
            new = msgspec.structs.replace(new, parameters_sha256=old.parameters_sha256)
        difference = old.difference(new)
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
    median, recall = fidelity(old(rows), new(rows))
    space = space_of(aligned_to.manifest)
    record = AlignmentRecord(space=space, median_cosine=median, self_recall=recall, sentences=len(rows))
    said = f"stored vectors of {aligned_to.path} compared with new ones: {record.description}"
    if record.due:
        report.warn(f"{said}; compute the stored vectors again soon")
    else:
        report.stage(said)
    return new, record


LEAST_RATIO = 2
"""Vectors per dimension below which the rotation is not determined well enough to be used."""

_EQUAL = 1e-9
"""Difference of cosines below which two texts count as equally near: a sample may hold a text twice."""

_ROWS_PER_BLOCK = 1024


def align(fitted: WhiteningMap, mean: Float64Array, weight: Float64Array, moments: Moments) -> WhiteningMap:
    """Rotate a map, y = (x - mean) W R, onto an old one of `mean` [d] and `weight` [d, k], on vectors of `moments`."""
    width = weight.shape[1]
    if moments.n < LEAST_RATIO * width:
        raise UsageError(
            f"{moments.n} sentences cannot align {width} dimensions; give {LEAST_RATIO * width} or more sentences"
        )
    second = moments.scatter / moments.n
    second = second + np.outer(moments.mean - fitted.mean, moments.mean - mean)
    left, _, right = svd(fitted.weight.T @ second @ weight)
    return replace(fitted, weight=np.ascontiguousarray(fitted.weight @ (left @ right)))


def fidelity(old: NDArray[np.floating], new: NDArray[np.floating]) -> tuple[float, float]:
    """Measure how well the new vectors of texts find their old vectors, both [n, k].

    Returns the median cosine of a text's two vectors, and the share of the texts whose new vector is nearest, by
    cosine, to their own old vector among all old ones.
    """
    stored, asked = (unit(rows) for rows in (old, new))
    recalled = 0
    for start in range(0, len(asked), _ROWS_PER_BLOCK):
        similarities = asked[start : start + _ROWS_PER_BLOCK] @ stored.T
        own = similarities[np.arange(len(similarities)), np.arange(start, start + len(similarities))]
        recalled += int((own >= similarities.max(axis=1) - _EQUAL).sum())
    return float(np.median(cosines(stored, asked))), recalled / len(asked)
