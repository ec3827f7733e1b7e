"""Choose the whitening for `--whitening auto` from measurements, with the reason in one line."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from whiten_runtime.bundle.manifest import CandidateRecord
from whiten_runtime.errors import UsageError
from whiten_whitening.isotropy import iso_score
from whiten_whitening.kinds import likeliest_weight
from whiten_whitening.maps import ADVISED_RATIO, WARNED_RATIO, WhiteningMap, WhiteningSpec
from whiten_whitening.moments import Float64Array, Moments
from whiten_whitening.shrinkage import Shrinkage, oas
from whiten_whitening.similarity import cosines, spearman

SOFT_WEIGHT = 0.5
"""Weight of the shrinkage of a soft whitening, unless another was asked for or is likelier.

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
    """Holds the whitening that was chosen.

    Attributes:
        spec: chosen whitening; None for none.
        why: reason, in one line.
        candidates: whitenings that were tried, with their results.
    """

    spec: WhiteningSpec | None
    why: str
    candidates: tuple[CandidateRecord, ...] = ()


def fine_tuned(name: str) -> Choice:
    """Choose no whitening, for the top layer of a checkpoint that was fine-tuned for similarity."""
    return Choice(
        None,
        f"not whitened: {name} was fine-tuned for sentence similarity, which whitening undoes; --whitening pca whitens "
        "it all the same",
    )


def soft_weight(moments: Moments, kinds: Mapping[str, Moments] | None) -> float:
    """Return the weight of the shrinkage of a soft whitening: the likeliest for kinds of text, if these are given.

    Vectors without spread have the usual one: none is likelier.
    """
    spread = moments.n >= 2 and float(np.trace(moments.scatter)) > 0
    return likeliest_weight(moments, kinds) if kinds is not None and spread else SOFT_WEIGHT


def choose_by_rules(
    moments: Moments,
    dimension: int | None,
    asked: Shrinkage = "none",
    tuned: bool = False,
    softness: float = SOFT_WEIGHT,
    other_layers_tuned: bool = False,
) -> Choice:
    """Choose by what is known without labels: training, spectrum, and number of vectors per dimension.

    Args:
        moments: moments of the corpus's vectors.
        dimension: number of dimensions to keep; None for all.
        asked: shrinkage that was asked for; "none" leaves it to the rules.
        tuned: whether the vectors were fine-tuned for similarity; then they are centred and rotated at most.
        softness: weight of the shrinkage of a soft whitening.
        other_layers_tuned: whether the model was fine-tuned for similarity, but not for the vectors of these layers.

    Raises:
        UsageError: fewer than 2 vectors.
    """
    width = len(moments.mean)
    if moments.n < 2:
        raise UsageError(
            f"{moments.n} sentences tell nothing about a whitening; give a corpus of {ADVISED_RATIO * width}"
        )
    isotropy, ratio = iso_score(moments.covariance), moments.n / width
    measured = f"{ratio:.1f} sentences per dimension, IsoScore {isotropy:.2f}"
    if tuned:
        return Choice(WhiteningSpec("pca", dimension, 0.0), f"centred only: fine-tuned for similarity ({measured})")
    if isotropy >= _ISOTROPIC and width > 1:
        why = f"centred only: the vectors use their space already ({measured})"
        return Choice(WhiteningSpec("pca", dimension, 0.0), why)
    if asked not in ("none", 0):
        return Choice(WhiteningSpec("pca", dimension, 1.0, asked), f"whitened, shrunk as asked for ({measured})")
    weight = softness
    few = moments.n < WARNED_RATIO * width
    if few:
        weight = max(weight, round(oas(moments), 2))
    untuned = f"not {'the layers that were ' if other_layers_tuned else ''}fine-tuned for similarity"
    why = f"soft whitening, shrinkage {weight:g}: {untuned}, far from isotropic ({measured}"
    return Choice(WhiteningSpec("pca", dimension, 1.0, weight), f"{why}{', which are few' if few else ''})")


def choose_by_pairs(
    fit: Fit,
    first: Float64Array,
    second: Float64Array,
    scores: Float64Array,
    dimension: int | None,
    asked: Shrinkage = "none",
) -> Choice:
    """Choose by Spearman's correlation between cosines and scores; among equals, the simplest, which is tried first.

    Args:
        fit: function that fits a whitening.
        first: vectors before whitening of each pair's first sentence, [n, d].
        second: vectors before whitening of each pair's second sentence, [n, d].
        scores: scores of the pairs, [n].
        dimension: number of dimensions to keep, if asked for; then vectors without whitening are not tried.
        asked: shrinkage that was asked for; "none" to try several.
    """
    width = first.shape[1]
    tried = list(_candidates(fit, first, second, scores, dimension, asked))
    spec, best = max(tried, key=lambda candidate: candidate[1].spearman)
    raw = next((f", not whitened {100 * other.spearman:.2f}" for own, other in tried if own is None), "")
    label = "not whitened" if spec is None else f"{_name(spec)}, {best.dimension} of {width} dimensions"
    why = f"{label}: best of {len(tried)} on {len(scores):,} pairs (Spearman {100 * best.spearman:.2f}{raw})"
    return Choice(spec, why, tuple(candidate for _, candidate in tried))


def _candidates(
    fit: Fit,
    first: Float64Array,
    second: Float64Array,
    scores: Float64Array,
    dimension: int | None,
    asked: Shrinkage,
) -> Iterator[tuple[WhiteningSpec | None, CandidateRecord]]:
    width = first.shape[1]
    if dimension is None:
        found = cosines(*(_mapped(fit(None), vectors) for vectors in (first, second)))
        yield None, CandidateRecord(whitening="none", beta=None, dimension=width, spearman=spearman(found, scores))
    kept = [dimension] if dimension else sorted({max(1, round(width * part)) for part in _FRACTIONS}, reverse=True)
    for spec in _specs(asked, width - (dimension or 1)):
        fitted = fit(spec)
        white = [_mapped(fitted, vectors) for vectors in (first, second)]
        whole = white[0].shape[1]
        for k in dict.fromkeys(min(k, whole) for k in kept):  # columns are nested
            found = cosines(white[0][:, :k], white[1][:, :k])
            weight = 0.0 if fitted is None else fitted.alpha
            yield (
                replace(spec, dimension=k if dimension or k < whole else None),
                CandidateRecord(
                    whitening=_kind(spec),
                    beta=spec.beta,
                    shrinkage=weight,
                    common_components=spec.common_components,
                    dimension=k,
                    spearman=spearman(found, scores),
                ),
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


def _name(spec: WhiteningSpec) -> str:
    kind = _kind(spec)
    if kind == "all-but-the-top":
        return f"all but the top {spec.common_components}"
    return f"soft, shrinkage {spec.shrinkage}" if kind == "soft" else kind


def _mapped(fitted: WhiteningMap | None, vectors: Float64Array) -> Float64Array:
    return vectors if fitted is None else (vectors - fitted.mean) @ fitted.weight
