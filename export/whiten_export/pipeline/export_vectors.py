"""Export a whitening of precomputed embeddings, such as an API's, as a bundle whose graph is the affine map alone."""

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whiten_export.corpus.statistics import Statistics, fit_vectors
from whiten_export.graph.builder import save_graph
from whiten_export.graph.head import OPSET, set_head, vectors_graph
from whiten_export.pipeline.choose_whitening import warn_of_rank
from whiten_export.pipeline.prove import describe_whitening, parity_record, versions
from whiten_export.pipeline.recipe import VectorRecipe, whitening_name
from whiten_export.proof.gate import check_rounding
from whiten_export.proof.reference import Head
from whiten_export.writing.client_files import Export, write_whitening
from whiten_export.writing.model_card import write_proven
from whiten_export.writing.staging import check_place, staged
from whiten_runtime.bundle.bundle import MODEL_FILE, file_record, list_files
from whiten_runtime.bundle.manifest import FORMAT_VERSION, Manifest
from whiten_runtime.bundle.parity import Probes, gate_of, write_probes
from whiten_runtime.bundle.records import CorpusRecord, ParityRecord, Source
from whiten_runtime.bundle.space import with_space
from whiten_runtime.errors import DataError, ParityError, instance_of, path_of
from whiten_runtime.files.read_vectors import read_vectors
from whiten_runtime.opened.vector_whitener import VectorWhitener
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import check_sample_count, fit_map

_PROBES = 64


def export_vectors(
    recipe: VectorRecipe, out: str | Path | None = None, replace: bool = False, reporter: Reporter | None = None
) -> Export:
    """Fit a whitening on a file of vectors, and write it as a bundle.

    Args:
        recipe: file of vectors and choices.
        out: directory to create; None for bundles/NAME-vectors.
        replace: replace a bundle that already exists.
        reporter: receives stages, warnings and progress; None for no reports.

    Raises:
        UsageError: the recipe is not valid for the file or the directory, or there are too few vectors.
        DataError: the file does not hold vectors.
        ParityError: the graph differs from numpy's result; nothing is written.
    """
    instance_of("recipe", recipe, VectorRecipe, "VectorRecipe('vectors.npy')")
    out = None if out is None else path_of("out", out)
    report = reporter or Reporter()
    name = recipe.name or recipe.file.name.split(".")[0]
    target = out or Path("bundles") / _bundle_name(name, recipe)
    check_place(target, replace)
    report.stage(f"reading {recipe.file}")
    statistics = _statistics(recipe, report)
    (corpus,) = statistics.corpus
    width = len(statistics.moments.mean)
    if warning := check_sample_count(statistics.moments.n, width, recipe.spec, "vectors"):
        report.warn(warning)
    fitted = fit_map(statistics.moments, recipe.spec, what="vectors")
    warn_of_rank(fitted, report)
    affine = fitted.mean, fitted.weight
    with staged(target, replace) as stage:
        graph = vectors_graph(width)
        set_head(graph, affine, recipe.normalize, vectors=recipe.round_to)
        save_graph(graph, stage / MODEL_FILE)
        write_whitening(stage, fitted)
        probes = _probes(recipe, statistics.moments.n, Head.of(affine, recipe.normalize))
        check_rounding(probes.embeddings, recipe.round_to)
        write_probes(stage, probes)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            name=target.absolute().name,
            source=Source(
                model=name,
                checkpoint=None,
                revision=None,
                weights_sha256=corpus.sha256,
                model_type="vectors",
                num_hidden_layers=0,
                hidden_size=width,
                sentence_similarity=False,
            ),
            input="vectors",
            layers=(),
            pooling=None,
            whitening=describe_whitening(fitted, statistics),
            normalize=recipe.normalize,
            vectors=recipe.round_to,
            dimension=fitted.weight.shape[1],
            max_seq_length=0,
            pad_token_id=0,
            precision="fp32",
            opset=OPSET,
            versions=versions(),
            parity=None,
            files={name: file_record(stage / name) for name in list_files(stage)},
        )
        report.stage("checking against numpy in float64")
        manifest = write_proven(stage, with_space(manifest), lambda: _prove(stage))
    return Export(target, manifest)


def _bundle_name(name: str, recipe: VectorRecipe) -> str:
    spec = recipe.spec
    parts = [name.replace("/", "-"), "vectors"]
    parts += whitening_name(spec.method, spec.dimension, spec.beta, spec.shrinkage, "pca")
    parts += ["norm"] if recipe.normalize else []
    return "-".join([*parts, *([recipe.round_to] if recipe.round_to != "float32" else [])])


def _statistics(recipe: VectorRecipe, report: Reporter) -> Statistics:
    """Return the statistics of all vectors of the file, with the SHA-256 over them as float32."""
    digest = hashlib.sha256()

    def parts() -> Iterator[NDArray[np.float32]]:
        for rows in read_vectors(recipe.file, recipe.column):
            digest.update(np.ascontiguousarray(rows, "<f4").tobytes())
            yield rows

    with report.bar("vectors", None) as advance:
        statistics = fit_vectors(parts(), advance)
    if statistics is None:
        raise DataError(f"{recipe.file}: holds no vector; give a file with vectors in it")
    record = CorpusRecord(name=recipe.file.name, sha256=digest.hexdigest(), sentences=statistics.moments.n)
    return dataclasses.replace(statistics, corpus=(record,))


def _probes(recipe: VectorRecipe, count: int, head: Head) -> Probes:
    """Return vectors spread evenly over the file, and numpy's results for them in float64."""
    wanted = np.unique(np.linspace(0, count - 1, _PROBES).astype(np.intp))
    rows = np.concatenate(list(_picked(recipe, wanted))).astype(np.float64)
    return Probes((), head(rows), rows)


def _picked(recipe: VectorRecipe, wanted: NDArray[np.intp]) -> Iterator[NDArray[np.float32]]:
    start = 0
    for rows in read_vectors(recipe.file, recipe.column):
        inside = wanted[(wanted >= start) & (wanted < start + len(rows))]
        yield rows[inside - start]
        start += len(rows)


def _prove(stage: Path) -> ParityRecord:
    """Check a bundle of vectors at the parity gate."""
    with VectorWhitener(stage) as whitener:
        agreement, vectors = whitener.verify(), whitener.manifest.vectors
    gate = gate_of("fp32", vectors)
    if not gate.passes(agreement):
        raise ParityError(f"the graph is not what numpy computes: {agreement}; wanted {gate}; no bundle was written")
    return parity_record(f"numpy {np.__version__}, float64", agreement)
