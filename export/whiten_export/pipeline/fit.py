"""Fit statistics of a corpus with a bundle's graph, resumed where a fit was interrupted."""

from collections.abc import Mapping
from pathlib import Path

from whiten_export.corpus.fitting import fit_corpus
from whiten_export.corpus.kinds import kind_moments
from whiten_export.corpus.settling import SpecOf, fit_until_settled, report_settled
from whiten_export.corpus.statistics import (
    Origin,
    Progress,
    Statistics,
    load_finished,
    load_statistics,
    save_statistics,
)
from whiten_export.pipeline.coverage import report_coverage
from whiten_runtime.bundle.graph_names import unwhitened_output
from whiten_runtime.bundle.manifest import Manifest, read_manifest
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.files.pace import SECONDS, Pace
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.inference.loading import load_bundle
from whiten_runtime.ort.openvino import wants_bfloat16
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.moments import Moments


def fit_bundle(
    path: str | Path,
    corpus: Corpus,
    out: Path | None = None,
    options: SessionOptions | None = None,
    restart: bool = False,
    reporter: Reporter | None = None,
    seconds_between: float = SECONDS,
    spec_of: SpecOf | None = None,
) -> Statistics:
    """Return the statistics of a corpus's vectors before whitening, computed by a bundle's graph.

    Args:
        path: the bundle, of any precision, whitened or not: its directory, or a repository of the model hub.
        corpus: sentences to fit on.
        out: file to write the statistics to. The state of an unfinished fit is saved beside it, and an interrupted fit
            resumes from there.
        options: options with which the session is created.
        restart: start again, and ignore the state of an interrupted fit.
        reporter: receives stages, warnings and progress.
        seconds_between: least seconds between two saves of the unfinished fit, which take at most 5 % of the time.
        spec_of: function that decides on the whitening; the fit then stops where more sentences would not move the map,
            unless the corpus has a limit. None for all sentences.

    Raises:
        UsageError: the bundle takes vectors, or the corpus differs from that of the interrupted fit.
        DataError: the corpus cannot be read, or a vector is not finite.
        BundleError: not a bundle, or not a whole one.
    """
    report = reporter or Reporter()
    path = locate_bundle(path)
    manifest = read_manifest(path)
    check_takes_texts(path, manifest)
    check_computes_as_recorded(options)
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
        with report.bar("sentences", sentences) as bar, keeper:
            if spec_of is None:
                statistics = fit_corpus(corpus, embedder, value, bar, resume, keeper.keep)
            else:
                statistics = fit_until_settled(corpus, embedder, value, spec_of, manifest.pooling == "sif", bar)
    statistics = statistics.fitted_at(manifest.precision)
    report_settled(statistics, report)
    if out is not None and partial is not None:
        save_statistics(out, statistics, origin)
        partial.unlink(missing_ok=True)
    return statistics


def embed_kinds(path: Path, options: SessionOptions | None = None) -> Mapping[str, Moments]:
    """Return the moments of a bundle's vectors before whitening, for each kind of text of the built-in corpus.

    Raises:
        BundleError: not a bundle, or not a whole one.
    """
    value = unwhitened_output(read_manifest(path))
    _, embedder = load_bundle(path, options, value=value)
    with embedder:
        return kind_moments(embedder, value)


def load_for(path: Path, manifest: Manifest, reporter: Reporter | None = None) -> Statistics:
    """Read finished statistics of the same model as a bundle's, of any precision.

    Raises:
        UsageError: they are of another model, or not finished.
        DataError: not a file of statistics.
    """
    check_takes_texts(path, manifest)
    statistics, origin = load_finished(path)
    if difference := origin.difference(Origin.of(manifest)):
        raise UsageError(f"{path}: is not of this bundle's model ({difference}); fit it with whiten fit")
    if reporter is not None and origin.precision != manifest.precision:
        reporter.warn(
            f"the statistics are of {origin.precision} vectors: this bundle's can be compared with those, but their "
            "means differ a little, which whiten drift will see"
        )
    return statistics


def check_computes_as_recorded(options: SessionOptions | None) -> None:
    """Raise UsageError if a session would compute in another precision than its bundle's manifest says."""
    if options is not None and wants_bfloat16(options.providers):
        raise UsageError("statistics of bfloat16 vectors would pass for the bundle's own; fit with openvino or cpu")


def check_takes_texts(path: str | Path, manifest: Manifest) -> None:
    """Raise UsageError if a bundle takes vectors instead of texts."""
    if manifest.input != "text":
        raise UsageError(f"{path}: takes vectors, not texts; fit it anew with whiten-export --from-vectors")


class _Keeper:
    """Saves the state of a fit in a file, at intervals after whole windows, and when it is interrupted."""

    def __init__(self, path: Path | None, origin: Origin, seconds_between: float) -> None:
        self._path = path
        self._pace = Pace(seconds_between)
        self._origin = origin
        self._last: tuple[Statistics, Progress] | None = None

    def keep(self, statistics: Statistics, progress: Progress) -> None:
        if self._path is None:
            return
        self._last = statistics, progress
        if self._pace.is_due():
            with self._pace.saving():
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
            self._last = None


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
