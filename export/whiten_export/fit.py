"""Fit the whitening of an export: what was asked for, or what suits the corpus; align it to another bundle's."""

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import tokenizers
from numpy.typing import NDArray

from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.manifest import (
    NESTED_METHODS,
    AlignmentRecord,
    IsotropyRecord,
    Manifest,
    Precision,
    Source,
    WhiteningRecord,
)
from whiten_runtime.bundle.space import space_of
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.hub import locate_bundle
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.options import EncodeOptions, Prompts
from whiten_runtime.inference.vectors import unit as unit_float32
from whiten_runtime.reporter import Reporter
from whiten_whitening.choosing import Choice, Development, choice_record, choose_by_development, choose_by_rules
from whiten_whitening.maps import (
    ADVISED_RATIO,
    EIGENVALUE_FLOOR,
    Shrinkage,
    StoredMap,
    WhiteningMap,
    WhiteningSpec,
    check_sample_count,
    read_map,
)
from whiten_whitening.measures import average_cosine, cosines, iso_score, partition_score, unit
from whiten_whitening.moments import Float64Array, Moments, svd
from whiten_whitening.statistics import Origin, Statistics, fit, fit_corpus


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
    """Rotate a map, y = (x - mean) W R, onto an old one of `mean` [d] and `weight` [d, k], on vectors of `moments`.

    A rotation on the right of W leaves a whitening a whitening, and changes no cosine between two vectors of the same
    map. The rotation is that of the orthogonal Procrustes problem (Schönemann, "A generalized solution of the
    orthogonal Procrustes problem", 1966): with y = (x - μ) W and the old z = (x - μ₀) W₀, the orthogonal R that
    minimises Σ |y R - z|² is U Vᵀ, where U S Vᵀ is the singular value decomposition of Σ yᵀ z.
    """
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


_LAST_LATIN = "\u024f"
"""Last letter of the block Latin Extended-B."""

_OTHER_SCRIPTS = 0.15
"""Share of tokens in other scripts from which a model counts as multilingual: bert-base-uncased has 0.05."""


def is_tuned(source: Source, layers: tuple[int, ...]) -> bool:
    """Return whether a model's top layer is the last of these layers, and was fine-tuned for sentence similarity."""
    return source.sentence_similarity and layers[-1:] == (source.num_hidden_layers,)


def keeps_norm(manifest: Manifest) -> bool:
    """Return whether a bundle that gets another whitening divides by the norm, as before.

    The authors' normalisation is of vectors that are not whitened: as in an export, a whitening takes its place.
    """
    of_authors = manifest.whitening is None and is_tuned(manifest.source, manifest.layers)
    return manifest.normalize and not of_authors


@dataclass(frozen=True)
class FitJob:
    """Says which whitening to fit, and on what."""

    spec: WhiteningSpec | None  # whitening that was asked for; None to choose one, or for a sif without whitening
    chooses: bool  # whether one is to be chosen
    dimension: int | None  # number of dimensions to keep; None for all
    shrinkage: Shrinkage  # shrinkage that a chosen whitening has, unless it is "none"
    normalize: bool | None  # whether whitened vectors are divided by their norm; None for what the draft says
    corpus: Corpus | None = None  # sentences to embed; None where there are statistics of the vectors
    sentences: int = 0  # number of sentences or vectors to fit on
    statistics: Statistics | None = None  # statistics that were computed before
    development: Development | None = None  # pairs with scores, or collections, to choose by
    aligned_to: Aligned | None = None  # bundle whose stored vectors are to stay usable
    required: bool = False  # whether no whitening is no choice
    prompt_name: str | None = None  # name of the prompt that each sentence gets; None for the default one

    def check_count(self, manifest: Manifest, different: int | None = None) -> str | None:
        """Check that there are enough vectors for the whitening that was asked for; return a warning, or None.

        `different` is the number of sentences that differ, where it is known.

        Raises:
            UsageError: there are too few.
        """
        if self.spec is None:
            return None
        count = self.sentences if different is None else different
        return check_sample_count(count, manifest.unwhitened_width, self.spec, sample_name(manifest))


def check_job(job: FitJob | None, manifest: Manifest) -> None:
    """Check that the whitening to fit for a draft can be aligned to the bundle that it names, if it names one."""
    if job is not None and job.aligned_to is not None:
        check_aligned(job.aligned_to, manifest, job.dimension or manifest.unwhitened_width)


def affine(fitted: WhiteningMap | None) -> tuple[Float64Array, Float64Array] | None:
    """Return mean [d] and weight [d, k] of a whitening, y = (x - mean) W; None for none."""
    return None if fitted is None else (fitted.mean, fitted.weight)


def sample_name(manifest: Manifest) -> str:
    """Return what a whitening of a draft is fitted on, for messages."""
    return "vectors" if manifest.input == "vectors" else "sentences"


def fit_whitening(
    manifest: Manifest,
    job: FitJob | None,
    open_embedder: Callable[[], Embedder] | None,
    precision: Precision,
    report: Reporter,
) -> tuple[Manifest, WhiteningMap | None]:
    """Fit the whitening of a draft; return the manifest with it, and its map, or None for none.

    It sets the manifest's `choice`, `whitening`, `dimension`, `matryoshka_dimensions` and `normalize`.

    Args:
        manifest: draft of the bundle.
        job: whitening to fit; None for none.
        open_embedder: opens what computes the vectors before whitening of texts; None where nothing is embedded.
        precision: precision of the graph that computes them.
        report: receives stages, warnings and progress.
    """
    if job is None:
        return manifest, None
    statistics = job.statistics
    with ExitStack() as stack:
        embedder = None
        if statistics is None or job.development is not None:
            assert open_embedder is not None
            embedder = stack.enter_context(open_embedder())
        if statistics is None:
            assert embedder is not None
            statistics = _embed_corpus(manifest, job, embedder, report).fitted_at(precision)
        choice = _choose(manifest, statistics, job, embedder, report)
    record = manifest.choice if choice is None else choice_record(choice, job.development)
    spec = job.spec if choice is None else choice.spec
    fitted = fit(statistics.moments, spec, manifest.pooling == "sif", sample_name(manifest))
    if fitted is None:
        if job.aligned_to is not None:
            why = choice.why if choice else "none was fitted"
            raise UsageError(f"there is no whitening to align to {job.aligned_to.path}: {why}")
        return msgspec.structs.replace(manifest, choice=record), None
    if manifest.input == "text":
        warn_of_few(fitted, statistics, report)
    warn_of_rank(fitted, sample_name(manifest), report)
    alignment = None
    if job.aligned_to is not None:
        fitted, alignment = align_with(job.aligned_to, fitted, statistics, report)
    manifest = msgspec.structs.replace(
        manifest,
        choice=record,
        whitening=whitening_record(fitted, statistics, alignment, job.prompt_name),
        dimension=fitted.weight.shape[1],
        matryoshka_dimensions=(),
        normalize=manifest.normalize if job.normalize is None else job.normalize,
    )
    return manifest, fitted


def _embed_corpus(manifest: Manifest, job: FitJob, embedder: Embedder, report: Reporter) -> Statistics:
    """Return the statistics of the vectors before whitening that a graph computes of the job's corpus."""
    assert job.corpus is not None
    report.stage(f"fitting on {job.sentences:,} sentences")
    with report.bar("sentences", job.sentences) as advance:
        return fit_corpus(job.corpus, embedder, advance, fit_options(manifest, job, embedder))


def fit_options(manifest: Manifest, job: FitJob | None, embedder: Embedder) -> EncodeOptions:
    """Return the options with which sentences of the corpus are embedded for a fit."""
    name = None if job is None else job.prompt_name
    return dataclasses.replace(embedder.options, prompt=Prompts.of(manifest).resolve(name))


def _choose(
    manifest: Manifest, statistics: Statistics, job: FitJob, embedder: Embedder | None, report: Reporter
) -> Choice | None:
    """Choose what was left open about the whitening of a draft's vectors; None where nothing was."""
    moments = statistics.moments
    if job.development is not None:
        assert embedder is not None
        chosen = job.development, moments, job.dimension, job.shrinkage
        return choose_by_development(*chosen, manifest, bool(job.normalize), embedder, report, job.required)
    if not job.chooses:
        return None
    if manifest.pooling == "sif":  # what is left to whiten
        moments = moments.without_components(moments.common_components(1))
    tuned = is_tuned(manifest.source, manifest.layers)
    other_layers_tuned = manifest.source.sentence_similarity and not tuned
    known = manifest.input == "text"
    return choose_by_rules(moments, job.dimension, job.shrinkage, tuned, other_layers_tuned, known)


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


def warn_of_rank(fitted: WhiteningMap, what: str, report: Reporter) -> None:
    """Say what becomes of directions in which the vectors do not vary, but where it is one of all, as is usual."""
    (width, dimension), spec = fitted.weight.shape, fitted.spec
    if spec is None or dimension <= fitted.rank or (dimension == width and fitted.rank == width - 1):
        return
    if spec.beta and not fitted.alpha:
        then = "what a text has in the others is dropped, or damped"
    elif dimension < width:
        then = (
            f"{dimension - fitted.rank} of the {dimension} dimensions are any of the others: keep --dim {fitted.rank}"
        )
    elif spec.beta:
        then = f"the others are whitened by a guess, so that texts unlike the {what} may have large parts there"
    else:
        return
    report.warn(f"the {what} vary in only {fitted.rank} of {width} directions: {then}")


def whitening_record(
    fitted: WhiteningMap, statistics: Statistics, alignment: AlignmentRecord | None, prompt_name: str | None
) -> WhiteningRecord:
    """Say how a map was fitted and aligned with another, and how it changes isotropy."""
    spec = fitted.spec
    before, after = measure_isotropy(fitted, statistics)
    return WhiteningRecord(
        method=spec.method if spec else "none",
        common_components=fitted.common_components,
        beta=spec.beta if spec else 0.0,
        shrinkage=fitted.alpha,
        shrinkage_estimator=spec.estimator if spec else "none",
        eigenvalue_floor=EIGENVALUE_FLOOR,
        rank=fitted.rank,
        n_samples=fitted.n_samples,
        corpus=statistics.corpus,
        prompt_name=msgspec.UNSET if prompt_name is None else prompt_name,
        sample=len(statistics.sample.vectors),
        isotropy_before=before,
        isotropy_after=after,
        alignment=alignment,
    )


def measure_isotropy(fitted: WhiteningMap, statistics: Statistics) -> tuple[IsotropyRecord, IsotropyRecord]:
    """Measure the isotropy of the corpus's vectors before and after a map.

    IsoScore is measured on all vectors. The average cosine is measured on all vectors before the map, where it can be
    streamed, and on the sample after it. The partition score is measured on the sample's unit vectors, because it
    depends on scale, which a whitening changes and cosines ignore.
    """
    moments, raw = statistics.moments, statistics.sample.vectors
    white = fitted(raw.astype(np.float64))
    covariances = moments.covariance, moments.affine(fitted.mean, fitted.weight).covariance
    before = _isotropy(covariances[0], moments, raw)
    return before, _isotropy(covariances[1], Moments.of(white), white)


def _isotropy(covariance: Float64Array, moments: Moments, sample: NDArray[np.floating]) -> IsotropyRecord:
    return IsotropyRecord(
        iso_score=iso_score(covariance),
        average_cosine=average_cosine(moments),
        partition_score=partition_score(unit_float32(sample.astype(np.float32))),
    )


def is_multilingual(tokenizer_json: str) -> bool:
    """Return whether many tokens of a vocabulary, the content of `tokenizer.json`, have letters beyond Latin script."""
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    size = tokenizer.get_vocab_size()
    texts = [tokenizer.decode([token], skip_special_tokens=False) for token in range(0, size, max(1, size // 8000))]
    other = sum(any(letter.isalpha() and letter > _LAST_LATIN for letter in text) for text in texts)
    return bool(texts) and other / len(texts) >= _OTHER_SCRIPTS
