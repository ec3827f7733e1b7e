"""Fit on as much of a corpus as moves the map: in parts that mix its kinds of text, until more would not change it."""

from collections import deque
from collections.abc import Callable

from whiten_export.corpus.fitting import embed_windows, fit_corpus
from whiten_export.corpus.statistics import Statistics
from whiten_runtime.bundle.manifest import SettledRecord
from whiten_runtime.files.corpus import PART, Corpus
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.reporter import Bar, Reporter
from whiten_whitening.maps import WhiteningMap, WhiteningSpec, fit_map, fit_sif
from whiten_whitening.moments import Moments
from whiten_whitening.settling import SETTLED, Halves, enough_to_tell, movement, vectors_needed

SpecOf = Callable[[Moments], WhiteningSpec | None]
"""Function that returns the whitening to fit on moments; None for none."""


_GROWTH = 1.25
"""Sentences over those at the last check, from which the map is checked again: a choice by pairs takes seconds."""


def fit(moments: Moments, spec: WhiteningSpec | None, sif: bool) -> WhiteningMap | None:
    """Return the map for a specification; None for no whitening, unless common components are removed."""
    if sif:
        return fit_sif(moments, spec)
    return fit_map(moments, spec) if spec else None


def fit_until_settled(
    corpus: Corpus, embedder: Embedder, value: str, spec_of: SpecOf, sif: bool, bar: Bar | None = None
) -> Statistics:
    """Return the statistics of as many sentences as the map needs, in the order of `Corpus.mixed`.

    After each part, the map that would be fitted so far is fitted on either half of the sentences; if cosines of others
    are the same under both, the fit stops. This depends on nothing but the vectors. A corpus with a limit, and one that
    is too small to stop in, is read in order, as by `fit_corpus`.
    """
    progress = bar or Bar()
    available, width = corpus.count(), embedder.engine.width_of(value)
    if corpus.limited or not enough_to_tell(available - PART, width):
        return fit_corpus(corpus, embedder, value, progress)
    statistics, halves, before, checked = Statistics.empty(width), Halves.empty(width), None, 0
    for part in corpus.mixed():
        for keys, vectors in embed_windows(part, embedder, value, progress, statistics.moments.n):
            moments, sample = statistics.moments.merge(Moments.of(vectors)), statistics.sample.add(keys, vectors)
            statistics, halves = Statistics(moments, sample), halves.add(keys, vectors)
        n = statistics.moments.n
        if n == available or n < _GROWTH * checked or not enough_to_tell(n, width):
            continue
        checked = n
        spec = spec_of(statistics.moments)
        maps = tuple(found for half in halves.moments if (found := fit(half, spec, sif)) is not None)
        moved = movement((maps[0], maps[1]), halves.others) if maps else 0.0
        if moved <= SETTLED and spec == before:
            settled = SettledRecord(available=available, difference=round(moved, 4), bound=SETTLED)
            return Statistics(statistics.moments, statistics.sample, corpus.records, settled)
        before = spec
        progress.expect(min(available, max(n + PART, vectors_needed(n, moved))))
    deque(corpus, 0)  # a whole corpus is recorded in the order of its sources, however it was read
    return Statistics(statistics.moments, statistics.sample, corpus.records)


def report_settled(statistics: Statistics, report: Reporter) -> None:
    """Report that a fit stopped before the end of its corpus."""
    if (settled := statistics.settled) is not None:
        report.stage(
            f"{statistics.moments.n:,} of {settled.available:,} sentences are enough: more would not move the map "
            f"(cosines under maps of either half differ by {settled.difference:.3f}; --all-sentences takes all)"
        )


def warn_of_rank(fitted: WhiteningMap, report: Reporter) -> None:
    """Warn if more dimensions are kept than the covariance's rank; a rank of d - 1 is usual, and gets no warning."""
    width, kept = fitted.weight.shape
    if kept > fitted.rank and (kept < width or fitted.rank < width - 1):
        report.warn(f"only {fitted.rank} of {kept} dimensions carry something; the others come out near 0")
