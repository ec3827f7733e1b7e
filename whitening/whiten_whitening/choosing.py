"""Choose the whitening for `--whitening auto`, by the corpus or by what `--dev` names."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from whiten_runtime.bundle.manifest import CandidateRecord, ChoiceRecord, Manifest
from whiten_runtime.errors import UsageError, kind_of_place
from whiten_runtime.files.judged import LAYOUT, Collection, Pairs, has_collections, read_collections, read_pairs
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.options import Prompts, searched_by_cosine
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import ADVISED_RATIO, WARNED_RATIO, Shrinkage, WhiteningMap, WhiteningSpec, whitened
from whiten_whitening.measures import Judged, cosines, iso_score, spearman, spearman_error
from whiten_whitening.moments import Float64Array, Moments, oas
from whiten_whitening.statistics import embed_float64, fit

SOFT_WEIGHT = 0.5
"""Weight of the shrinkage of a soft whitening, unless another was asked for.

Soft-ZCA (Diera et al., 2024) with ε = α / (1 - α) times the mean eigenvalue. Measured on the untuned layers of
all-MiniLM-L6-v2: better than full whitening with every corpus, and as good as any weight from 0.3 to 0.7;
`benchmarks/builtin_corpus/table.md`.
"""

Kind = Literal["centre", "partial", "full", "soft", "all-but-the-top"]

_ISOTROPIC = 0.5
"""IsoScore from which vectors are only centred: they are already nearly isotropic."""

_PARTIAL = 0.5
_WEIGHTS = (0.1, 0.3, 0.5, 0.7)
"""Weights of the shrinkage to try on pairs."""

_REMOVED = (1, 2, 4)
"""Numbers of common components to try to remove on pairs."""

_FRACTIONS = (1, 3 / 4, 1 / 2, 1 / 3, 1 / 4, 1 / 6, 1 / 8, 1 / 16)
"""Kept dimensions to try, as fractions of all dimensions."""

Fit = Callable[[WhiteningSpec | None], WhiteningMap | None]
"""Function that fits a whitening; for None, it returns the map without whitening, or None if there is no such map."""


@dataclass(frozen=True)
class Choice:
    spec: WhiteningSpec | None  # chosen whitening; None for none
    why: str  # reason, which follows the description of the whitening
    candidates: tuple[CandidateRecord, ...] = ()  # whitenings that were tried, with their results


@dataclass(frozen=True)
class Score:
    value: float  # the score, at most 1
    error: float  # its standard error over the pairs or queries

    def __str__(self) -> str:
        return f"{100 * self.value:.2f} ± {100 * self.error:.2f}"


TUNED = Choice(None, "the model was trained for similarity, which whitening undoes")
"""No whitening, for the top layer of a checkpoint that was fine-tuned for similarity."""


_UNTUNED = {True: "nothing says that the model was trained for similarity", False: "the vectors lie in few directions"}


def choose_by_rules(
    moments: Moments,
    dimension: int | None,
    asked: Shrinkage = "none",
    tuned: bool = False,
    other_layers_tuned: bool = False,
    known: bool = True,
) -> Choice:
    """Choose by what is known without labels: training, spectrum, and number of vectors per dimension.

    `known` says whether it is known what the model was trained for.
    """
    width = len(moments.mean)
    if moments.n < 2:
        raise UsageError(
            f"{moments.n} sentences tell nothing about a whitening; give a corpus of {ADVISED_RATIO * width}"
        )
    if tuned:
        return Choice(WhiteningSpec("pca", dimension, 0.0), TUNED.why)
    if iso_score(moments.covariance) >= _ISOTROPIC and width > 1:
        return Choice(WhiteningSpec("pca", dimension, 0.0), "the vectors are nearly even without it")
    if asked not in ("none", 0):
        return Choice(WhiteningSpec("pca", dimension, 1.0, asked), "the shrinkage that was asked for")
    weight = SOFT_WEIGHT
    few = moments.n < WARNED_RATIO * width
    if few:
        weight = max(weight, round(oas(moments), 2))
    untuned = "these layers were not trained for similarity" if other_layers_tuned else _UNTUNED[known]
    why = f"{untuned}{', and the sentences are few' if few else ''}"
    return Choice(WhiteningSpec("pca", dimension, 1.0, weight), why)


def choose_by_pairs(
    fit: Fit,
    first: Float64Array,
    second: Float64Array,
    scores: Float64Array,
    dimension: int | None,
    asked: Shrinkage = "none",
    required: bool = False,
) -> Choice:
    """Choose by Spearman's correlation between scores, [n], and cosines of the pairs' vectors, [n, d].

    Of those within one standard error of the best, the simplest is chosen, which is tried first: the best of many is
    partly so by chance. With a `dimension`, no whitening is not tried; it is not chosen where one is `required`.
    """

    def score(vectors: Sequence[Float64Array]) -> Score:
        similarities = cosines(vectors[0], vectors[1])
        return Score(spearman(similarities, scores), spearman_error(similarities, scores))

    tried = list(_candidates(fit, (first, second), score, dimension, asked))
    return _best(tried, required, f"{len(scores):,} pairs", "spearman")


def choose_by_search(
    fit: Fit,
    searches: Sequence[Judged],
    by_cosine: bool,
    dimension: int | None,
    asked: Shrinkage = "none",
    required: bool = False,
) -> Choice:
    """Choose by the mean nDCG@10 of searches, by cosine or else by dot product; otherwise as `choose_by_pairs`."""
    vectors = [rows for search in searches for rows in (search.queries, search.documents)]

    def score(mapped: Sequence[Float64Array]) -> Score:
        both = zip(searches, mapped[::2], mapped[1::2], strict=True)
        each = [search.ndcg_at_10(asking, searched, by_cosine) for search, asking, searched in both]
        squares = [values.var() / len(values) for values in each]  # of the error of each collection's mean
        return Score(float(np.mean([values.mean() for values in each])), float(np.sqrt(np.sum(squares))) / len(each))

    tried = list(_candidates(fit, vectors, score, dimension, asked))
    queries = sum(len(search.queries) for search in searches)
    return _best(tried, required, f"{queries:,} queries", "ndcg_at_10")


Tried = tuple[WhiteningSpec | None, CandidateRecord, Score]
"""A whitening, its record without the score, and the score."""

_MEASURES = {"spearman": "Spearman", "ndcg_at_10": "nDCG@10"}
"""Names of measures, by their fields of a candidate's record."""


_DECIMALS = 4
"""Decimals of a score by which candidates are compared: processors round the last ones apart."""


def _best(tried: Sequence[Tried], required: bool, of: str, measure: str) -> Choice:
    """Return the simplest whitening, which is tried first, whose score is within one standard error of the best.

    The error is the larger one of both: few pairs make that of a high score too small.
    """
    allowed = [candidate for candidate in tried if candidate[0] is not None or not required]
    best = max((score for _, _, score in allowed), key=lambda score: round(score.value, _DECIMALS))
    spec, _, chosen = next(
        candidate
        for candidate in allowed
        if round(candidate[2].value + max(best.error, candidate[2].error) - best.value, _DECIMALS) >= 0
    )
    others = "" if chosen is best else f", best {best}"
    others += next((f", not whitened {100 * score.value:.2f}" for own, _, score in tried if own is None), "")
    within = "" if chosen is best else "the simplest within a standard error of the "
    why = f"{within}best of {len(tried)} on {of} ({_MEASURES[measure]} {chosen}{others})"
    records = (msgspec.structs.replace(record, **{measure: score.value}) for _, record, score in tried)
    return Choice(spec, why, tuple(records))


def _candidates(
    fit: Fit,
    vectors: Sequence[Float64Array],
    score: Callable[[Sequence[Float64Array]], Score],
    dimension: int | None,
    asked: Shrinkage,
) -> Iterator[Tried]:
    width = vectors[0].shape[1]
    if dimension is None:
        unwhitened = fit(None)
        record = CandidateRecord(whitening="none", beta=None, dimension=width)
        yield None, record, score([whitened(rows, unwhitened) for rows in vectors])
    dimensions = (
        [dimension] if dimension else sorted({max(1, round(width * part)) for part in _FRACTIONS}, reverse=True)
    )
    for spec in _specs(asked, width - (dimension or 1)):
        fitted = fit(spec)
        white = [whitened(rows, fitted) for rows in vectors]
        whole = white[0].shape[1]
        for k in dict.fromkeys(min(k, whole) for k in dimensions):  # columns are nested
            weight = 0.0 if fitted is None else fitted.alpha
            yield (
                replace(spec, dimension=k if dimension or k < whole else None),
                CandidateRecord(
                    whitening=_kind(spec),
                    beta=spec.beta,
                    shrinkage=weight,
                    common_components=spec.common_components,
                    dimension=k,
                ),
                score([rows[:, :k] for rows in white]),
            )


def _specs(asked: Shrinkage, spare: int) -> Iterator[WhiteningSpec]:
    """Yield the whitenings to try, the simplest first; `spare` is how many directions may be removed."""
    yield WhiteningSpec(beta=0.0, shrinkage=asked)
    for count in _REMOVED:
        if count <= spare:
            yield WhiteningSpec(beta=0.0, shrinkage=asked, common_components=count)
    weights = _WEIGHTS if asked in ("none", 0) else (asked,)
    yield from (WhiteningSpec(shrinkage=weight) for weight in reversed(weights))
    yield WhiteningSpec(beta=_PARTIAL, shrinkage=asked)
    if asked in ("none", 0):
        yield WhiteningSpec()


def _kind(spec: WhiteningSpec) -> Kind:
    if spec.common_components:
        return "all-but-the-top"
    if spec.beta == 0:
        return "centre"
    if spec.beta < 1:
        return "partial"
    return "full" if spec.shrinkage in ("none", 0) else "soft"


Development = Pairs | tuple[Collection, ...]

ADVISED_PAIRS, ADVISED_QUERIES = 200, 50
"""Numbers of pairs and of queries below which a choice by them is warned of."""

_PAIRS = (".csv", ".jsonl", ".tsv")
_COLLECTION = ("corpus.jsonl", "queries.jsonl")


def read_development(path: Path, report: Reporter) -> Development:
    """Read the collections in a folder, else its file of pairs; or a file of pairs. Report what is used."""
    if kind_of_place(path) != "directory":
        return read_pairs(path)
    files = sorted(file for file in path.iterdir() if file.suffix in _PAIRS and file.name not in _COLLECTION)
    if has_collections(path):
        collections = tuple(read_collections(path, None))
        for collection in collections:
            size = f"{len(collection.queries):,} queries, {len(collection.documents):,} documents"
            report.stage(f"choosing by search of {collection.name}: {size}, qrels/{collection.judgements}")
            for warning in collection.warnings:
                report.warn(warning)
        if files:
            report.stage(f"{files[0]} is not used; to choose by pairs with scores, pass --dev {files[0]}")
        return collections
    if len(files) != 1:
        holds = f"holds {', '.join(file.name for file in files):.80}" if files else "holds no data"
        raise UsageError(f"dev '{path}' {holds}; wanted a file of pairs with scores, or {LAYOUT}")
    report.stage(f"choosing by the pairs of {files[0]}")
    return read_pairs(files[0])


def check_searched(development: Development | None, manifest: Manifest, normalize: bool) -> None:
    """Check that a search by a draft's vectors can be scored, if it is to be."""
    if not isinstance(development, tuple):
        return
    if manifest.route is not None:
        raise UsageError(f"the model has the route {manifest.route} only, but a search needs queries and documents")
    try:
        searched_by_cosine(manifest.similarity_fn_name, normalize)
    except UsageError as error:
        raise UsageError(f"the model {error}; choose by pairs (--dev FILE), or name a whitening") from None


def choose_by_development(
    development: Development,
    moments: Moments,
    dimension: int | None,
    shrinkage: Shrinkage,
    manifest: Manifest,
    normalize: bool,
    embedder: Embedder,
    report: Reporter,
    required: bool = False,
) -> Choice:
    """Embed the texts of `--dev`, and choose the whitening, fitted on moments of a corpus, that suits them best."""

    def fit_spec(spec: WhiteningSpec | None) -> WhiteningMap | None:
        return fit(moments, spec, manifest.pooling == "sif")

    _warn_of_few(development, report)
    if isinstance(development, Pairs):
        first, second = (embed_float64(texts, embedder) for texts in (development.first, development.second))
        return choose_by_pairs(fit_spec, first, second, development.scores, dimension, shrinkage, required)
    by_cosine = searched_by_cosine(manifest.similarity_fn_name, normalize)
    prompts = Prompts.of(manifest)
    with report.bar(
        "texts", sum(len(collection.queries) + len(collection.documents) for collection in development)
    ) as advance:

        def embed(texts: Sequence[str], prompt: str) -> Float64Array:
            options = replace(embedder.options, prompt=prompt, finite=True)
            return embed_float64(texts, embedder, options, advance)

        searches = [_judged(collection, embed, prompts) for collection in development]
    return choose_by_search(fit_spec, searches, by_cosine, dimension, shrinkage, required)


def _warn_of_few(development: Development, report: Reporter) -> None:
    """Warn of fewer pairs or queries than a choice among many whitenings needs."""
    if isinstance(development, Pairs):
        count, advised, what = len(development.scores), ADVISED_PAIRS, "pairs"
    else:
        count, advised, what = sum(len(collection.queries) for collection in development), ADVISED_QUERIES, "queries"
    if count < advised:
        report.warn(f"{count:,} {what} are few to choose a whitening by, {advised} or more are advised")


def _judged(collection: Collection, embed: Callable[[Sequence[str], str], Float64Array], prompts: Prompts) -> Judged:
    rows = {name: row for row, name in enumerate(collection.ids)}
    grades = []
    for query in collection.queries:
        own = collection.relevant[query]
        grades.append({rows.get(name, -place): grade for place, (name, grade) in enumerate(own.items(), 1)})
    return Judged(
        embed(list(collection.queries.values()), prompts.for_task("query")),
        embed([collection.documents[name] for name in rows], prompts.for_task("document")),
        tuple(grades),
        collection.own_rows,
    )


def choice_record(choice: Choice, development: Development | None) -> ChoiceRecord:
    if isinstance(development, tuple):
        records = tuple(collection.record for collection in development)
        return ChoiceRecord(why=choice.why, collections=records, candidates=choice.candidates)
    pairs = None if development is None else development.record
    return ChoiceRecord(why=choice.why, pairs=pairs, candidates=choice.candidates)
