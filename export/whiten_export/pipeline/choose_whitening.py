"""Fit the whitening of an export: what was asked for, or what suits the corpus."""

from pathlib import Path

import msgspec
import tokenizers

from whiten_export.pipeline.align import Aligned, align_with
from whiten_export.pipeline.apply import is_tuned
from whiten_export.pipeline.recipe import Recipe
from whiten_export.pipeline.tools import Tools
from whiten_export.pipeline.whitening_record import with_whitening
from whiten_runtime.bundle.graph import UNWHITENED_OUTPUT
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import BUILTIN_CORPUS
from whiten_runtime.reporter import Reporter
from whiten_whitening.choosing import Choice, choose_by_rules
from whiten_whitening.development import choice_record, choose_by_development
from whiten_whitening.maps import ADVISED_RATIO, WhiteningMap
from whiten_whitening.moments import Moments
from whiten_whitening.statistics import Statistics, fit, fit_corpus

_LAST_LATIN = "\u024f"
"""Last letter of the block Latin Extended-B."""

_OTHER_SCRIPTS = 0.15
"""Share of tokens in other scripts from which a model counts as multilingual: bert-base-uncased has 0.05."""


def fit_whitening(manifest: Manifest, graph: Path, tools: Tools) -> tuple[Manifest, WhiteningMap | None]:
    """Set the whitening of a draft, and return its map, fitted on the vectors that a graph computes; None for none."""
    if (fit_for := tools.fit) is None:
        return manifest, None
    recipe, report, sif = fit_for.recipe, tools.report, manifest.pooling == "sif"
    report.stage(f"fitting on {fit_for.sentences:,} sentences")
    if BUILTIN_CORPUS in recipe.sources and is_multilingual(tools.source.tokenizer.json):
        report.stage(
            f"{BUILTIN_CORPUS} is English, but the model knows other scripts: add --corpus FILE in your languages"
        )
    choice, spec, development = None, recipe.spec, fit_for.development
    with tools.embedder(manifest, graph, UNWHITENED_OUTPUT) as embedder:
        with report.bar("sentences", fit_for.sentences) as advance:
            statistics = fit_corpus(fit_for.corpus, embedder, advance)
        if development is not None:
            chosen = development, statistics.moments, recipe.dim, recipe.shrinkage
            choice = choose_by_development(*chosen, manifest, bool(recipe.normalize), embedder, report)
        elif recipe.whitening == "auto":
            choice = by_rules(statistics.moments, recipe, manifest)
    if choice is not None:
        spec = choice.spec
        manifest = msgspec.structs.replace(manifest, choice=choice_record(choice, development))
    fitted = fit(statistics.moments, spec, sif)
    if fitted is None:
        if fit_for.aligned_to is not None:
            why = choice.why if choice else "none was fitted"
            raise UsageError(f"there is no whitening to align to {fit_for.aligned_to.path}: {why}")
        return manifest, None
    manifest, fitted = finish_map(manifest, fitted, statistics, fit_for.aligned_to, report)
    if recipe.whitening is not None:  # the authors' normalisation is of vectors that are not whitened
        manifest = msgspec.structs.replace(manifest, normalize=bool(recipe.normalize))
    return manifest, fitted


def keeps_norm(manifest: Manifest) -> bool:
    """Return whether a bundle that gets another whitening divides by the norm, as before.

    The authors' normalisation is of vectors that are not whitened: as in an export, a whitening takes its place.
    """
    of_authors = manifest.whitening is None and is_tuned(manifest.source, manifest.layers)
    return manifest.normalize and not of_authors


def finish_map(
    manifest: Manifest, fitted: WhiteningMap, statistics: Statistics, aligned_to: Aligned | None, report: Reporter
) -> tuple[Manifest, WhiteningMap]:
    """Report what is weak about a map, turn it onto that of a bundle, if there is one, and describe it in the draft."""
    warn_of_few(fitted, statistics, report)
    warn_of_rank(fitted, report)
    alignment = None
    if aligned_to is not None:
        fitted, alignment = align_with(aligned_to, fitted, statistics, report)
    return with_whitening(manifest, fitted, statistics, alignment), fitted


def warn_of_few(fitted: WhiteningMap, statistics: Statistics, report: Reporter) -> None:
    """Warn of fewer sentences than advised for a map that whitens."""
    n, width = statistics.moments.n, len(fitted.mean)
    if fitted.spec is None or not fitted.spec.beta or n >= ADVISED_RATIO * width:
        return
    if any(source.name == BUILTIN_CORPUS for source in statistics.corpus):
        better = "give more of them"
    else:
        better = f"for English, {BUILTIN_CORPUS} is better, or both together (--corpus FILE --corpus {BUILTIN_CORPUS})"
    report.warn(
        f"{n:,} sentences for {width} dimensions are few, {ADVISED_RATIO * width:,} or more are advised: {better}"
    )


def warn_of_rank(fitted: WhiteningMap, report: Reporter) -> None:
    """Warn if more dimensions are kept than the covariance's rank; a rank of d - 1 is usual, and gets no warning."""
    width, dimension = fitted.weight.shape
    if dimension > fitted.rank and (dimension < width or fitted.rank < width - 1):
        report.warn(f"only {fitted.rank} of {dimension} dimensions carry something; the others come out near 0")


def by_rules(moments: Moments, recipe: Recipe, manifest: Manifest) -> Choice:
    """Choose what was left open about the whitening of a draft's vectors."""
    if manifest.pooling == "sif":  # what is left to whiten
        moments = moments.without_components(moments.common_components(1))
    tuned = is_tuned(manifest.source, manifest.layers)
    other_layers_tuned = manifest.source.sentence_similarity and not tuned
    return choose_by_rules(moments, recipe.dim, recipe.shrinkage, tuned, other_layers_tuned)


def is_multilingual(tokenizer_json: str) -> bool:
    """Return whether many tokens of a vocabulary, the content of `tokenizer.json`, have letters beyond Latin script."""
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    size = tokenizer.get_vocab_size()
    texts = [tokenizer.decode([token], skip_special_tokens=False) for token in range(0, size, max(1, size // 8000))]
    other = sum(any(letter.isalpha() and letter > _LAST_LATIN for letter in text) for text in texts)
    return bool(texts) and other / len(texts) >= _OTHER_SCRIPTS
