"""Export a whitening of precomputed embeddings, such as an API's, as a bundle whose graph is the affine map alone."""

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_export.corpus.statistics import Statistics, fit_vectors
from whiten_export.graph.builder import save_graph
from whiten_export.graph.head import OPSET, set_head, vectors_graph
from whiten_export.pipeline.choose_whitening import warn_of_rank
from whiten_export.pipeline.prove import parity_record, seal, versions
from whiten_export.pipeline.recipe import check_rounded, whitening_name
from whiten_export.pipeline.whitening_record import with_whitening
from whiten_export.proof.gate import check_rounding
from whiten_export.proof.reference import Head
from whiten_export.writing.client_files import Export, write_whitening
from whiten_export.writing.staging import check_place, staged
from whiten_runtime.bundle.bundle import MODEL_FILE
from whiten_runtime.bundle.manifest import FORMAT_VERSION, Manifest
from whiten_runtime.bundle.parity import Probes, gate_of
from whiten_runtime.bundle.records import CorpusRecord, ParityRecord, Source, VectorType
from whiten_runtime.errors import DataError, ParityError, instance_of, path_of
from whiten_runtime.files.read_vectors import read_vectors
from whiten_runtime.opened.vector_whitener import VectorWhitener
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningSpec, check_sample_count, fit_map
from whiten_whitening.moments import Float64Array

_PROBES = 64


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
    round_to: VectorType = "float32",
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
        round_to: type in which the whitened vectors can be stored, as in `Recipe`.

    Raises:
        UsageError: choices are not valid for the file or the directory, or there are too few vectors.
        DataError: the file does not hold vectors.
        ParityError: the graph differs from numpy's result; nothing is written.
    """
    file, out = path_of("file", file), None if out is None else path_of("out", out)
    spec = WhiteningSpec() if spec is None else spec
    instance_of("spec", spec, WhiteningSpec, "WhiteningSpec(method='pca')")
    check_rounded(round_to, normalize)
    report = reporter or Reporter()
    name = name or file.name.split(".")[0]
    target = out or Path("bundles") / _bundle_name(name, spec, normalize, round_to)
    check_place(target, replace)
    report.stage(f"reading {file}")
    statistics = _statistics(file, column, report)
    count, width = statistics.moments.n, len(statistics.moments.mean)
    if warning := check_sample_count(count, width, spec, "vectors"):
        report.warn(warning)
    fitted = fit_map(statistics.moments, spec, what="vectors")
    warn_of_rank(fitted, report)
    draft = _draft(name, statistics, width)
    draft = msgspec.structs.replace(draft, name=target.absolute().name, normalize=normalize, vectors=round_to)
    manifest, affine = with_whitening(draft, fitted, statistics), (fitted.mean, fitted.weight)
    with staged(target, replace) as stage:
        graph = vectors_graph(width)
        set_head(graph, affine, normalize, vectors=round_to)
        save_graph(graph, stage / MODEL_FILE)
        write_whitening(stage, fitted)
        rows = _probes(file, column, count)
        probes = Probes((), Head.of(affine, normalize)(rows), rows)
        check_rounding(probes.embeddings, round_to)
        report.stage("checking against numpy in float64")
        manifest = seal(stage, manifest, probes, lambda _: _prove(stage))
    return Export(target, manifest)


def _draft(name: str, statistics: Statistics, width: int) -> Manifest:
    """Return the manifest of a graph that returns its vectors as they are."""
    (corpus,) = statistics.corpus
    source = Source(
        model=name,
        checkpoint=None,
        revision=None,
        weights_sha256=corpus.sha256,
        model_type="vectors",
        num_hidden_layers=0,
        hidden_size=width,
        sentence_similarity=False,
    )
    return Manifest(
        format_version=FORMAT_VERSION,
        name=name,
        source=source,
        input="vectors",
        layers=(),
        pooling=None,
        whitening=None,
        normalize=False,
        dimension=width,
        max_seq_length=0,
        pad_token_id=0,
        precision="fp32",
        opset=OPSET,
        versions=versions(),
        parity=None,
        files={},
    )


def _bundle_name(name: str, spec: WhiteningSpec, normalize: bool, round_to: VectorType) -> str:
    parts = [name.replace("/", "-"), "vectors"]
    parts += whitening_name(spec.method, spec.dimension, spec.beta, spec.shrinkage, "pca")
    parts += ["norm"] if normalize else []
    return "-".join([*parts, *([round_to] if round_to != "float32" else [])])


def _statistics(file: Path, column: str | None, report: Reporter) -> Statistics:
    """Return the statistics of all vectors of the file, with the SHA-256 over them as float32."""
    digest = hashlib.sha256()

    def parts() -> Iterator[NDArray[np.float32]]:
        for rows in read_vectors(file, column):
            digest.update(np.ascontiguousarray(rows, "<f4").tobytes())
            yield rows

    with report.bar("vectors", None) as advance:
        statistics = fit_vectors(parts(), advance)
    if statistics is None:
        raise DataError(f"{file}: holds no vector; give a file with vectors in it")
    record = CorpusRecord(name=file.name, sha256=digest.hexdigest(), sentences=statistics.moments.n)
    return dataclasses.replace(statistics, corpus=(record,))


def _probes(file: Path, column: str | None, count: int) -> Float64Array:
    """Return vectors spread evenly over the file, [n, d]."""
    wanted = np.unique(np.linspace(0, count - 1, _PROBES).astype(np.intp))
    taken, start = [], 0
    for rows in read_vectors(file, column):
        inside = wanted[(wanted >= start) & (wanted < start + len(rows))]
        taken.append(rows[inside - start])
        start += len(rows)
    return np.concatenate(taken).astype(np.float64)


def _prove(stage: Path) -> ParityRecord:
    """Check a bundle of vectors at the parity gate."""
    with VectorWhitener(stage) as whitener:
        agreement, vectors = whitener.verify(), whitener.manifest.vectors
    gate = gate_of("fp32", vectors)
    if not gate.passes(agreement):
        raise ParityError(f"the graph is not what numpy computes: {agreement}; wanted {gate}; no bundle was written")
    return parity_record(f"numpy {np.__version__}, float64", agreement)
