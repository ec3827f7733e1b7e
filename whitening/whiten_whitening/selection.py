"""Choose the whitening for `--whitening auto` from measurements, with the reason in one line."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from whiten_runtime.bundle.manifest import CandidateRecord
from whiten_runtime.errors import UsageError
from whiten_whitening.isotropy import iso_score
from whiten_whitening.maps import ADVISED_RATIO, WARNED_RATIO, WhiteningMap, WhiteningSpec
from whiten_whitening.moments import Float64Array, Moments
from whiten_whitening.shrinkage import Shrinkage
from whiten_whitening.similarity import cosines, spearman

FEW_SHRINKAGE: Shrinkage = "oas"
"""Shrinkage that is used for a small corpus, unless another was asked for."""

_ISOTROPIC = 0.5
"""IsoScore from which vectors are only centred: they are already nearly isotropic."""

_PARTIAL = 0.5
_FRACTIONS = (1, 3 / 4, 1 / 2, 1 / 3, 1 / 4, 1 / 6, 1 / 8, 1 / 16)
"""Kept dimensions to try, as fractions of all dimensions."""

_KINDS: dict[Literal["centre", "partial", "full"], float] = {"centre": 0.0, "partial": _PARTIAL, "full": 1.0}

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
    return Choice(None, f"not whitened: {name} was fine-tuned for sentence similarity, which whitening undoes")


def shrinkage_for(moments: Moments, asked: Shrinkage) -> Shrinkage:
    """Return the shrinkage asked for; `FEW_SHRINKAGE` if none was asked for and there are few vectors."""
    few = moments.n < WARNED_RATIO * len(moments.mean)
    return FEW_SHRINKAGE if few and asked in ("none", 0) else asked


def choose_by_rules(moments: Moments, dimension: int | None, asked: Shrinkage) -> Choice:
    """Choose by the spectrum and by the number of vectors per dimension.

    Raises:
        UsageError: fewer than 2 vectors.
    """
    width = len(moments.mean)
    if moments.n < 2:
        raise UsageError(
            f"{moments.n} sentences tell nothing about a whitening; give a corpus of {ADVISED_RATIO * width}"
        )
    isotropy, ratio = iso_score(moments.covariance), moments.n / width
    shrinkage = shrinkage_for(moments, asked)
    measured = f"{ratio:.1f} sentences per dimension, IsoScore {isotropy:.2f}"
    if isotropy >= _ISOTROPIC and width > 1:
        why = f"centred only: the vectors use their space already ({measured})"
        return Choice(WhiteningSpec("pca", dimension, 0.0), why)
    spec = WhiteningSpec("pca", dimension, 1.0, shrinkage)
    if shrinkage != asked:
        return Choice(spec, f"whitened, shrunk by {shrinkage} as there are few sentences ({measured})")
    rough = "" if ratio >= ADVISED_RATIO else f", fewer than the {ADVISED_RATIO} advised"
    return Choice(spec, f"whitened: not fine-tuned for similarity, far from isotropic ({measured}{rough})")


def choose_by_pairs(
    fit: Fit,
    first: Float64Array,
    second: Float64Array,
    scores: Float64Array,
    dimension: int | None,
    shrinkage: Shrinkage,
) -> Choice:
    """Choose by Spearman's correlation between cosines and scores; among equals, the simplest, which is tried first.

    Args:
        fit: function that fits a whitening.
        first: vectors before whitening of each pair's first sentence, [n, d].
        second: vectors before whitening of each pair's second sentence, [n, d].
        scores: scores of the pairs, [n].
        dimension: number of dimensions to keep, if asked for; then vectors without whitening are not tried.
        shrinkage: shrinkage of the covariance.
    """
    candidates = tuple(_candidates(fit, first, second, scores, dimension, shrinkage))
    best = max(candidates, key=lambda candidate: candidate.spearman)
    width = first.shape[1]
    raw = next((f", not whitened {100 * other.spearman:.2f}" for other in candidates if other.whitening == "none"), "")
    label = "not whitened" if best.whitening == "none" else f"{best.whitening}, {best.dimension} of {width} dimensions"
    why = f"{label}: best of {len(candidates)} on {len(scores):,} pairs (Spearman {100 * best.spearman:.2f}{raw})"
    if best.beta is None:
        return Choice(None, why, candidates)
    kept = best.dimension if best.dimension < width or dimension else None
    return Choice(WhiteningSpec("pca", kept, best.beta, shrinkage), why, candidates)


def _candidates(
    fit: Fit,
    first: Float64Array,
    second: Float64Array,
    scores: Float64Array,
    dimension: int | None,
    shrinkage: Shrinkage,
) -> Iterator[CandidateRecord]:
    width = first.shape[1]
    if dimension is None:
        found = cosines(*(_mapped(fit(None), vectors) for vectors in (first, second)))
        yield CandidateRecord(whitening="none", beta=None, dimension=width, spearman=spearman(found, scores))
    kept = [dimension] if dimension else sorted({max(1, round(width * part)) for part in _FRACTIONS}, reverse=True)
    for kind, beta in _KINDS.items():
        fitted = fit(WhiteningSpec("pca", None, beta, shrinkage))
        white = [_mapped(fitted, vectors) for vectors in (first, second)]
        for k in kept:  # columns are nested
            found = cosines(white[0][:, :k], white[1][:, :k])
            yield CandidateRecord(whitening=kind, beta=beta, dimension=k, spearman=spearman(found, scores))


def _mapped(fitted: WhiteningMap | None, vectors: Float64Array) -> Float64Array:
    return vectors if fitted is None else (vectors - fitted.mean) @ fitted.weight
