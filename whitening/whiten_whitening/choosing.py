"""Choose the whitening for `--whitening auto`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import numpy as np

from whiten_runtime.bundle.records import CandidateRecord
from whiten_runtime.errors import UsageError
from whiten_whitening.isotropy import iso_score
from whiten_whitening.maps import ADVISED_RATIO, WARNED_RATIO, Shrinkage, WhiteningMap, WhiteningSpec, whitened
from whiten_whitening.moments import Float64Array, Moments, oas
from whiten_whitening.similarity import Judged, cosines, spearman, spearman_error

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
