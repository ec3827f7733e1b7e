"""Fit statistics of a corpus with a bundle's graph, and choose the whitening of a refit on them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from whiten_export.corpus.statistics import (
    Origin,
    SpecOf,
    Statistics,
    fit_corpus,
    fit_until_settled,
    kind_moments,
    load_statistics,
    save_statistics,
)
from whiten_export.pipeline.recipe import WhiteningChoice
from whiten_runtime.bundle.graph import unwhitened_output
from whiten_runtime.bundle.manifest import Manifest, read_manifest
from whiten_runtime.bundle.records import ChoiceRecord
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.inference.loading import load_bundle
from whiten_runtime.ort.openvino import wants_bfloat16
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.choosing import Choice, choose_by_rules, soft_weight
from whiten_whitening.maps import WhiteningSpec
from whiten_whitening.moments import Moments


def fit_bundle(
    path: str | Path,
    corpus: Corpus,
    out: Path | None = None,
    options: SessionOptions | None = None,
    reporter: Reporter | None = None,
    spec_of: SpecOf | None = None,
) -> Statistics:
    """Return the statistics of a corpus's vectors before whitening, computed by a bundle's graph.

    Args:
        path: the bundle, of any precision, whitened or not: its directory, or a repository of the model hub.
        corpus: sentences to fit on.
        out: file to write the statistics to; None for no file.
        options: options with which the session is created.
        reporter: receives stages, warnings and progress.
        spec_of: function that decides on the whitening; the fit then stops where more sentences would not move the map,
            unless the corpus has a limit. None for all sentences.

    Raises:
        UsageError: the bundle takes vectors.
        DataError: the corpus cannot be read, or a vector is not finite.
        BundleError: not a bundle, or not a whole one.
    """
    report = reporter or Reporter()
    path = locate_bundle(path)
    manifest = read_manifest(path)
    check_takes_texts(path, manifest)
    check_computes_as_recorded(options)
    sentences = corpus.count()
    whole = spec_of is None or corpus.limited
    report.stage(f"fitting on {sentences:,} sentences{'' if whole else ' at most'}")
    value = unwhitened_output(manifest)
    _, embedder = load_bundle(path, options, value=value)
    with embedder, report.bar("sentences", sentences) as bar:
        if spec_of is None:
            statistics = fit_corpus(corpus, embedder, value, bar)
        else:
            statistics = fit_until_settled(corpus, embedder, value, spec_of, manifest.pooling == "sif", bar)
    statistics = statistics.fitted_at(manifest.precision)
    if out is not None:
        save_statistics(out, statistics, Origin.of(manifest))
    return statistics


@dataclass(frozen=True)
class Fitted:
    """Holds the statistics of a corpus, and the whitening that suits them."""

    statistics: Statistics
    spec: WhiteningSpec
    choice: ChoiceRecord | None  # reason of the whitening, where it was left to a rule; otherwise None
    kinds: Mapping[str, Moments] | None  # moments of the built-in kinds of text, unless the corpus contains them


def fit_whitening(
    path: Path, asked: WhiteningChoice, stats: Path | None, options: SessionOptions, reporter: Reporter
) -> Fitted:
    """Fit statistics of the corpus, or read those of a file, and choose what was left open about the whitening."""
    manifest = read_manifest(path)

    @cache
    def kinds() -> Mapping[str, Moments] | None:
        return embed_kinds(path, options) if stats is None and BUILTIN_CORPUS not in asked.sources else None

    def choose(moments: Moments) -> Choice:
        tuned, weight = _is_tuned(manifest), soft_weight(moments, kinds())
        elsewhere = manifest.source.sentence_similarity and not tuned
        return choose_by_rules(moments, asked.dim, asked.shrinkage, tuned, weight, elsewhere)

    if stats is not None:
        statistics = load_for(stats, manifest, reporter)
    else:
        spec_of = None if asked.all_sentences else lambda moments: asked.spec or choose(moments).spec
        corpus = Corpus(asked.sources, asked.column, asked.max_sentences)
        statistics = fit_bundle(path, corpus, None, options, reporter, spec_of=spec_of)
    if asked.spec is not None:
        return Fitted(statistics, asked.spec, None, kinds())
    choice = choose(statistics.moments)
    assert choice.spec is not None  # the rules always give a map
    return Fitted(statistics, choice.spec, ChoiceRecord(why=choice.why), kinds())


def _is_tuned(manifest: Manifest) -> bool:
    """Return whether a bundle's vectors come from a top layer that was fine-tuned for sentence similarity."""
    source = manifest.source
    return source.sentence_similarity and manifest.layers[-1:] == (source.num_hidden_layers,)


def embed_kinds(path: Path, options: SessionOptions | None = None) -> Mapping[str, Moments]:
    """Return the moments of a bundle's vectors before whitening, for each kind of text of the built-in corpus."""
    value = unwhitened_output(read_manifest(path))
    _, embedder = load_bundle(path, options, value=value)
    with embedder:
        return kind_moments(embedder, value)


def load_for(path: Path, manifest: Manifest, reporter: Reporter | None = None) -> Statistics:
    """Read finished statistics of the same model as a bundle's, of any precision."""
    check_takes_texts(path, manifest)
    statistics, origin = load_statistics(path)
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
