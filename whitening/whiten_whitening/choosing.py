"""Choose the whitening for `--whitening auto`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import numpy as np

from whiten_runtime.bundle.records import CandidateRecord
from whiten_runtime.errors import UsageError
from whiten_whitening.isotropy import iso_score
from whiten_whitening.judged import Judged
from whiten_whitening.maps import ADVISED_RATIO, WARNED_RATIO, Shrinkage, WhiteningMap, WhiteningSpec, whitened
from whiten_whitening.moments import Float64Array, Moments, oas
from whiten_whitening.similarity import cosines, spearman

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
    """Whitening that was chosen."""

    spec: WhiteningSpec | None  # chosen whitening; None for none
    why: str  # reason, which follows the description of the whitening
    candidates: tuple[CandidateRecord, ...] = ()  # whitenings that were tried, with their results


TUNED = Choice(None, "the model was trained for similarity, which whitening undoes")
"""No whitening, for the top layer of a checkpoint that was fine-tuned for similarity."""


def choose_by_rules(
    moments: Moments,
    dimension: int | None,
    asked: Shrinkage = "none",
    tuned: bool = False,
    other_layers_tuned: bool = False,
) -> Choice:
    """Choose by what is known without labels: training, spectrum, and number of vectors per dimension."""
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
    untuned = "these layers were" if other_layers_tuned else "the model was"
    why = f"{untuned} not trained for similarity{', and the sentences are few' if few else ''}"
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

    Among equals, the simplest is chosen, which is tried first. With a `dimension`, no whitening is not tried; it is
    not chosen where one is `required`.
    """

    def score(vectors: Sequence[Float64Array]) -> float:
        return spearman(cosines(vectors[0], vectors[1]), scores)

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

    def score(mapped: Sequence[Float64Array]) -> float:
        both = zip(searches, mapped[::2], mapped[1::2], strict=True)
        return float(np.mean([search.ndcg_at_10(asking, found, by_cosine) for search, asking, found in both]))

    tried = list(_candidates(fit, vectors, score, dimension, asked))
    queries = sum(len(search.queries) for search in searches)
    return _best(tried, required, f"{queries:,} queries", "ndcg_at_10")


Tried = tuple[WhiteningSpec | None, CandidateRecord, float]
"""A whitening, its record without the score, and the score, at most 1."""

_MEASURES = {"spearman": "Spearman", "ndcg_at_10": "nDCG@10"}
"""Names of measures, by their fields of a candidate's record."""


_DECIMALS = 4
"""Decimals of a score by which candidates are compared: processors round the last ones apart."""


def _best(tried: Sequence[Tried], required: bool, of: str, measure: str) -> Choice:
    allowed = [candidate for candidate in tried if candidate[0] is not None or not required]
    spec, _, best = max(allowed, key=lambda candidate: round(candidate[2], _DECIMALS))  # the first of equal ones
    raw = next((f", not whitened {100 * score:.2f}" for own, _, score in tried if own is None), "")
    why = f"best of {len(tried)} on {of} ({_MEASURES[measure]} {100 * best:.2f}{raw})"
    return Choice(spec, why, tuple(msgspec.structs.replace(record, **{measure: score}) for _, record, score in tried))


def _candidates(
    fit: Fit,
    vectors: Sequence[Float64Array],
    score: Callable[[Sequence[Float64Array]], float],
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
