"""Export a whitening of precomputed embeddings, such as an API's, as a bundle whose graph is only the affine map."""

import dataclasses
from pathlib import Path
from typing import Literal

import msgspec

from whiten_export.pipeline.align import open_aligned
from whiten_export.pipeline.export import export
from whiten_export.pipeline.recipe import whitening_name
from whiten_export.pipeline.work import FitJob
from whiten_export.sources.load.stored import VectorFile
from whiten_export.writing.client_files import Export
from whiten_export.writing.staging import check_place
from whiten_runtime.errors import instance_of, path_of
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import Shrinkage, WhiteningSpec


def export_vectors(
    file: str | Path,
    out: str | Path | None = None,
    replace: bool = False,
    reporter: Reporter | None = None,
    *,
    name: str | None = None,
    column: str | None = None,
    spec: WhiteningSpec | Literal["auto"] | None = None,
    normalize: bool = False,
    dim: int | None = None,
    shrinkage: Shrinkage = "none",
    align_to: str | Path | None = None,
) -> Export:
    """Fit a whitening on a file of vectors, and write it as a bundle.

    Args:
        file: a .npy, .parquet or .jsonl file.
        out: directory to create; None for bundles/NAME-vectors.
        replace: replace a bundle that already exists.
        reporter: receives stages, warnings and progress; None for no reports.
        name: name of the model that computed the vectors; None for the file's name.
        column: column or key of the vectors.
        spec: whitening to fit; None for that of pca, "auto" to choose one by the spectrum of the vectors.
        normalize: divide by the L2 norm inside the graph.
        dim: number of leading dimensions that a chosen whitening keeps; None for all.
        shrinkage: shrinkage of a chosen whitening; "none" to choose it, too.
        align_to: bundle of vectors of the same model that are to stay usable: the new map is turned onto its map.

    Raises:
        UsageError: choices are not valid for the file or the directory, or there are too few vectors.
        DataError: the file does not hold vectors.
        ParityError: the graph differs from numpy's result; nothing is written.
    """
    file, out = path_of("file", file), None if out is None else path_of("out", out)
    asked = None if spec == "auto" else spec or WhiteningSpec()
    if asked is not None:
        instance_of("spec", asked, WhiteningSpec, "WhiteningSpec(method='pca')")
        dim, shrinkage = asked.dimension, asked.shrinkage
    report = reporter or Reporter()
    name = name or file.name.split(".")[0]
    target = out or Path("bundles") / _bundle_name(name, asked, dim, shrinkage, normalize)
    check_place(target, replace)
    aligned_to = open_aligned(align_to)
    if aligned_to is not None:
        dim = aligned_to.dimension(dim, asked)
        asked = None if asked is None else dataclasses.replace(asked, dimension=dim)
    report.stage(f"reading {file}")
    source = VectorFile(file, name, column, report)
    job = FitJob(
        asked,
        asked is None,
        dim,
        shrinkage,
        normalize,
        sentences=source.statistics.moments.n,
        aligned_to=aligned_to,
    )
    manifest = msgspec.structs.replace(source.draft, name=target.absolute().name, normalize=normalize)
    if warning := job.check_count(manifest):
        report.warn(warning)
    return export(source, manifest, job, target, replace, SessionOptions(), report)


def _bundle_name(name: str, spec: WhiteningSpec | None, dim: int | None, shrinkage: Shrinkage, normalize: bool) -> str:
    whitening = "auto"
    if spec is not None:
        strength = "centre" if spec.beta == 0 else "partial" if spec.beta < 1 else "pca"
        whitening = strength if spec.method == "pca" else spec.method
    parts = [name.replace("/", "-"), "vectors", *whitening_name(whitening, dim, shrinkage, "pca")]
    parts += ["norm"] if normalize else []
    return "-".join(parts)
