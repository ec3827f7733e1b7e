"""Give a bundle another whitening without PyTorch: its graph computes the vectors, and only the head is replaced."""

import dataclasses
import shutil
import time
from pathlib import Path

import msgspec
import onnx_ir as ir

from whiten_export.corpus.fitting import fit_corpus
from whiten_export.corpus.statistics import (
    Origin,
    Progress,
    Statistics,
    load_finished,
    load_statistics,
    save_statistics,
)
from whiten_export.graph.files import save_graph
from whiten_export.graph.head import set_head
from whiten_export.pipeline.coverage import report_coverage
from whiten_export.pipeline.describe import describe_whitening, parity_record, versions
from whiten_export.proof.gate import Expected, check_bundle
from whiten_export.proof.reference import Head
from whiten_export.writing.client_files import write_pooling
from whiten_export.writing.result import Export, warn_of_rank, write_whitening
from whiten_export.writing.staging import check_target, staged
from whiten_runtime.bundle.bundle import (
    EXTERNAL_DATA_FILE,
    MODEL_FILE,
    PROBE_VECTORS_FILE,
    WHITENING_FILE,
    Bundle,
    file_record,
    list_files,
    open_bundle,
)
from whiten_runtime.bundle.graph_names import unwhitened_output
from whiten_runtime.bundle.manifest import MANIFEST_FILE, Manifest, ParityRecord, read_manifest
from whiten_runtime.bundle.parity import GATES
from whiten_runtime.bundle.probes import Probes, read_probes, write_probes
from whiten_runtime.bundle.space import with_space
from whiten_runtime.errors import ParityError, UsageError
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.inference.loading import load_bundle
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningMap, WhiteningSpec, check_sample_count, fit_map, fit_sif

_REPLACED = frozenset({MODEL_FILE, EXTERNAL_DATA_FILE, WHITENING_FILE, PROBE_VECTORS_FILE})

_AGAIN = ", vectors before whitening as stored at export, whitened by numpy in float64"

SECONDS_BETWEEN = 20.0
"""Seconds between two saves of an unfinished fit."""


def fit_bundle(
    path: Path,
    corpus: Corpus,
    out: Path | None = None,
    options: SessionOptions | None = None,
    restart: bool = False,
    reporter: Reporter | None = None,
    seconds_between: float = SECONDS_BETWEEN,
) -> Statistics:
    """Return the statistics of a corpus's vectors before whitening, computed by a bundle's graph.

    Args:
        path: the bundle, of any precision, whitened or not.
        corpus: sentences to fit on.
        out: file to write the statistics to. The state of an unfinished fit is saved beside it, and an interrupted fit
            resumes from there.
        options: options with which the session is created.
        restart: start again, and ignore the state of an interrupted fit.
        reporter: receives stages, warnings and progress.
        seconds_between: seconds between two saves of the unfinished fit.

    Raises:
        UsageError: the bundle takes vectors, or the corpus differs from that of the interrupted fit.
        DataError: the corpus cannot be read, or a vector is not finite.
        BundleError: not a bundle, or not a whole one.
    """
    report = reporter or Reporter()
    manifest = read_manifest(path)
    _check_input(path, manifest)
    sentences = corpus.count()
    origin = Origin.of(manifest)
    partial = out and out.with_name(f"{out.name}.partial")
    resume = None if restart or partial is None else _resume(partial, origin, report)
    report.stage(f"fitting on {sentences:,} sentences")
    value = unwhitened_output(manifest)
    bundle, embedder = load_bundle(path, options, value=value)
    keeper = _Keeper(partial, origin, seconds_between)
    with embedder:
        report_coverage(manifest.source.model_type, bundle.tokenizer.read_text("utf-8"), corpus, report)
        with report.bar("sentences", sentences) as advance, keeper:
            statistics = fit_corpus(corpus, embedder, value, advance, resume, keeper.keep).fitted_at(manifest.precision)
    if out is not None and partial is not None:
        save_statistics(out, statistics, origin)
        partial.unlink(missing_ok=True)
    return statistics


def refit_bundle(
    path: Path,
    statistics: Statistics,
    spec: WhiteningSpec,
    out: Path,
    replace: bool = False,
    options: SessionOptions | None = None,
    reporter: Reporter | None = None,
) -> Export:
    """Write a bundle with another whitening, and verify it against the stored vectors of the reference.

    Args:
        path: the bundle.
        statistics: statistics from `fit_bundle`.
        spec: whitening to fit.
        out: directory to create.
        replace: replace a bundle that already exists.
        options: options with which sessions are created.
        reporter: receives stages and warnings.

    Raises:
        UsageError: the whitening cannot be fitted on the statistics, they are not valid for the bundle, the bundle
            takes vectors, or `out` exists.
        BundleError: not a bundle, or not a whole one.
        ParityError: the new bundle fails its parity gate; nothing is written.
    """
    report = reporter or Reporter()
    check_target(out, replace)
    bundle = open_bundle(path)
    old = bundle.manifest
    _check_input(path, old)
    probes = read_probes(bundle)
    width = old.unwhitened_width
    if len(statistics.moments.mean) != width:
        raise UsageError(f"the statistics are of {len(statistics.moments.mean)} dimensions, but {path} has {width}")
    if warning := check_sample_count(statistics.moments.n, width, spec):
        report.warn(warning)
    fitted = fit_sif(statistics.moments, spec) if old.pooling == "sif" else fit_map(statistics.moments, spec)
    warn_of_rank(fitted, report)
    affine, dimension = (fitted.mean, fitted.weight), fitted.weight.shape[1]
    report.stage(f"writing {out}")
    with staged(out, replace) as stage:
        _copy(bundle, stage)
        graph = ir.load(bundle.model)
        set_head(graph, affine, old.normalize, old.outputs == "both")
        save_graph(graph, stage / MODEL_FILE)
        del graph
        write_whitening(stage, fitted)
        write_pooling(stage, dimension)
        probes = dataclasses.replace(probes, embeddings=Head.of(affine, old.normalize)(probes.unwhitened))
        write_probes(stage, probes)
        manifest = _describe(old, fitted, statistics, stage, out)
        (stage / MANIFEST_FILE).write_bytes(manifest.to_json())
        report.stage("checking against the stored vectors of the reference")
        manifest = msgspec.structs.replace(
            manifest, parity=_prove(stage, manifest, probes, options or SessionOptions())
        )
        (stage / MANIFEST_FILE).write_bytes(manifest.to_json())
    return Export(out, manifest)


def load_for(path: Path, manifest: Manifest, reporter: Reporter | None = None) -> Statistics:
    """Read finished statistics of the same model as a bundle's, of any precision.

    Raises:
        UsageError: they are of another model, or not finished.
        DataError: not a file of statistics.
    """
    _check_input(path, manifest)
    statistics, origin = load_finished(path)
    if difference := origin.difference(Origin.of(manifest)):
        raise UsageError(f"{path}: is not of this bundle's model ({difference}); fit it with whiten fit")
    if reporter is not None and origin.precision != manifest.precision:
        reporter.warn(
            f"the statistics are of {origin.precision} vectors: this bundle's can be compared with those, but their "
            "means differ a little, which whiten drift will see"
        )
    return statistics


def _check_input(path: Path, manifest: Manifest) -> None:
    if manifest.input != "text":
        raise UsageError(f"{path}: takes vectors, not texts; fit it anew with whiten-export --from-vectors")


class _Keeper:
    """Saves the state of a fit in a file, at intervals and when it is interrupted."""

    def __init__(self, path: Path | None, origin: Origin, seconds_between: float) -> None:
        self._path = path
        self._seconds_between = seconds_between
        self._origin = origin
        self._saved = time.monotonic()
        self._last: tuple[Statistics, Progress] | None = None

    def keep(self, statistics: Statistics, progress: Progress) -> None:
        if self._path is None:
            return
        self._last = statistics, progress
        if time.monotonic() - self._saved >= self._seconds_between:
            self._save()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is not None:
            self._save()

    def _save(self) -> None:
        if self._path is not None and self._last is not None:
            statistics, progress = self._last
            save_statistics(self._path, statistics, self._origin, progress)
            self._last, self._saved = None, time.monotonic()


def _resume(partial: Path, origin: Origin, report: Reporter) -> tuple[Statistics, Progress] | None:
    if not partial.is_file():
        return None
    statistics, other, progress = load_statistics(partial)
    difference = other.difference(origin) or (
        None if other.precision == origin.precision else f"precision {other.precision} and {origin.precision}"
    )
    if difference or progress is None:
        raise UsageError(f"{partial}: is of another fit ({difference}); finish that one, or begin anew with --restart")
    report.stage(f"going on after {progress.sentences:,} sentences")
    return statistics, progress


def _copy(bundle: Bundle, stage: Path) -> None:
    """Copy the files that a refit does not change."""
    for name in bundle.manifest.files:
        if name not in _REPLACED:
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.path / name, stage / name)


def _describe(old: Manifest, fitted: WhiteningMap, statistics: Statistics, stage: Path, out: Path) -> Manifest:
    made = {f"refit-{name}": version for name, version in versions().items() if name in ("whiten", "numpy")}
    manifest = msgspec.structs.replace(
        old,
        name=out.absolute().name,
        whitening=describe_whitening(fitted, statistics),
        choice=None,
        matryoshka_dimensions=(),
        published=None,
        dimension=fitted.weight.shape[1],
        versions=old.versions | made,
        files={name: file_record(stage / name) for name in list_files(stage)},
    )
    return with_space(manifest)


def _prove(stage: Path, manifest: Manifest, probes: Probes, options: SessionOptions) -> ParityRecord:
    agreement = check_bundle(stage, Expected("", probes), options)
    gate = GATES[manifest.precision]
    if not gate.passes(agreement):
        raise ParityError(
            f"whitened anew, the bundle misses its gate: {agreement}; wanted {gate}: texts differ too little in some "
            "direction for its precision; use a smaller --dim, --beta or more --shrinkage; no bundle was written"
        )
    first = manifest.parity.reference.split(_AGAIN)[0] if manifest.parity else "the reference"
    return parity_record(first + _AGAIN, agreement, options)
