"""Export a whitening of precomputed embeddings, such as an API's, as a bundle whose graph is the affine map alone."""

from pathlib import Path

import msgspec

from whiten_export.graph.builder import save_graph
from whiten_export.graph.head import set_head
from whiten_export.pipeline.choose_whitening import warn_of_rank
from whiten_export.pipeline.prove import parity_record, seal, versions
from whiten_export.pipeline.recipe import whitening_name
from whiten_export.pipeline.whitening_record import with_whitening
from whiten_export.proof.gate import Expected
from whiten_export.sources.load.vectors import VectorFile
from whiten_export.writing.client_files import Export, write_whitening
from whiten_export.writing.staging import check_place, staged
from whiten_runtime.bundle.bundle import MODEL_FILE
from whiten_runtime.bundle.parity import GATES
from whiten_runtime.bundle.records import ParityRecord
from whiten_runtime.errors import ParityError, instance_of, path_of
from whiten_runtime.opened.vector_whitener import VectorWhitener
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningSpec, check_sample_count, fit_map


def export_vectors(
    file: str | Path,
    out: str | Path | None = None,
    replace: bool = False,
    reporter: Reporter | None = None,
    *,
    name: str | None = None,
    column: str | None = None,
    spec: WhiteningSpec | None = None,
    normalize: bool = False,
) -> Export:
    """Fit a whitening on a file of vectors, and write it as a bundle.

    Args:
        file: a .npy, .parquet or .jsonl file.
        out: directory to create; None for bundles/NAME-vectors.
        replace: replace a bundle that already exists.
        reporter: receives stages, warnings and progress; None for no reports.
        name: name of the model that computed the vectors; None for the file's name.
        column: column or key of the vectors.
        spec: whitening to fit; None for that of pca.
        normalize: divide by the L2 norm inside the graph.

    Raises:
        UsageError: choices are not valid for the file or the directory, or there are too few vectors.
        DataError: the file does not hold vectors.
        ParityError: the graph differs from numpy's result; nothing is written.
    """
    file, out = path_of("file", file), None if out is None else path_of("out", out)
    spec = WhiteningSpec() if spec is None else spec
    instance_of("spec", spec, WhiteningSpec, "WhiteningSpec(method='pca')")
    report = reporter or Reporter()
    name = name or file.name.split(".")[0]
    target = out or Path("bundles") / _bundle_name(name, spec, normalize)
    check_place(target, replace)
    report.stage(f"reading {file}")
    source = VectorFile(file, name, column, report)
    moments = source.statistics.moments
    if warning := check_sample_count(moments.n, source.width, spec, "vectors"):
        report.warn(warning)
    fitted = fit_map(moments, spec, what="vectors")
    warn_of_rank(fitted, report)
    manifest = msgspec.structs.replace(
        source.draft, name=target.absolute().name, normalize=normalize, versions=versions()
    )
    manifest = with_whitening(manifest, fitted, source.statistics)
    with staged(target, replace, report=report) as stage:
        graph = source.graph()
        set_head(graph, (fitted.mean, fitted.weight), normalize)
        save_graph(graph, stage / MODEL_FILE)
        write_whitening(stage, fitted)
        expected = source.expected()
        report.stage("checking against numpy in float64")
        manifest = seal(stage, manifest, fitted, expected, lambda _, finished: _check(stage, finished))
    return Export(target, manifest)


def _bundle_name(name: str, spec: WhiteningSpec, normalize: bool) -> str:
    strength = "centre" if spec.beta == 0 else "partial" if spec.beta < 1 else "pca"
    whitening = strength if spec.method == "pca" else spec.method
    parts = [name.replace("/", "-"), "vectors", *whitening_name(whitening, spec.dimension, spec.shrinkage, "pca")]
    parts += ["norm"] if normalize else []
    return "-".join(parts)


def _check(stage: Path, expected: Expected) -> ParityRecord:
    """Check a bundle of vectors at the parity gate."""
    with VectorWhitener(stage) as whitener:
        agreement = whitener.verify()
    gate = GATES["fp32"]
    if not gate.passes(agreement):
        raise ParityError(f"the graph is not what numpy computes: {agreement}; wanted {gate}; no bundle was written")
    return parity_record(expected.reference, agreement)
