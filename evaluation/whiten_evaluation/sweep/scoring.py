"""Score a combination of layers in similarity and in search: the mean of their vectors (WhiteningBERT, section 3.2)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, combinations
from math import comb
from typing import Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_evaluation.embedding import Storage
from whiten_evaluation.retrieval import MEASURES, measured, nearest
from whiten_evaluation.sts import RESAMPLES, Interval, Task, interval, resampled, score_task
from whiten_evaluation.sweep.layers import LayerVectors
from whiten_runtime.errors import UsageError
from whiten_runtime.files.judged import Collection
from whiten_whitening.choosing import SOFT_WEIGHT
from whiten_whitening.maps import WhiteningMap, WhiteningSpec, check_sample_count, fit_map
from whiten_whitening.measures import cosines
from whiten_whitening.moments import Float64Array, Moments

Combination = tuple[int, ...]
Map = Callable[[Float64Array], Float64Array]

Whitened = Literal["none", "task", "corpus"]
"""Whitening of a score: none, in full on each task's own sentences, or softly, as an export's, on a corpus for all."""

KINDS: tuple[Whitened, ...] = get_args(Whitened)

MOST_COMBINATIONS = 400
"""Combinations that are scored at most: all of 8 layers, those of up to 3 of BERT-base's 13, of up to 2 of 25."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of a combination of layers, times 100: Spearman's correlations of tasks, or nDCG@10 of collections."""

    whitening: Whitened
    layers: Combination
    values: tuple[float | None, ...]
    """Scores of each task; None where all texts have the same vector, or are too few to whiten."""
    average: float | None
    """None if a task has no score."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A score with 95 % intervals of a bootstrap over the pairs."""

    score: Score
    interval: Interval
    difference: Interval
    """Interval of the difference of the average to that of the best row."""


def rank(score: Score) -> tuple[float, int, Combination]:
    """Order scores: the best first, those without an average last, of equals the one of fewer and lower layers."""
    return (np.inf if score.average is None else -score.average, len(score.layers), score.layers)


def scored_combinations(layers: Sequence[int]) -> list[Combination]:
    """Return single layers, pairs, and all of as many more layers as `MOST_COMBINATIONS` allow."""
    totals = accumulate(comb(len(layers), size) for size in range(1, len(layers) + 1))
    largest = max(2, sum(total <= MOST_COMBINATIONS for total in totals))
    return list(chain.from_iterable(combinations(layers, size) for size in range(1, largest + 1)))


@dataclass(frozen=True)
class Scorer:
    vectors: LayerVectors
    corpus: LayerVectors
    tasks: Sequence[Task]
    collections: Sequence[Collection]
    by_cosine: bool  # whether search compares vectors by cosine, or else by dot product
    normalized: Combination | None  # layers whose vectors the authors normalise

    def soft_map(self, layers: Combination) -> Map | None:
        return _fit(self.corpus.mean(layers), WhiteningSpec(shrinkage=SOFT_WEIGHT))

    def similarity(self, layers: Combination) -> list[Score]:
        """Score a combination on every task, not whitened and whitened in both ways."""
        soft = self.soft_map(layers)
        of_tasks = [(task, self.cosines(task, layers, soft)) for task in self.tasks]
        scores = []
        for kind in KINDS:
            values = [score_task(task, own).mean if (own := cosines[kind]) else None for task, cosines in of_tasks]
            scores.append(_score(kind, layers, values))
        return scores

    def cosines(
        self, task: Task, layers: Combination, soft: Map | None
    ) -> Mapping[Whitened, list[NDArray[np.floating]] | None]:
        """Return the cosines of a task's pairs, [n] for each sub-dataset; None where there are none to compare."""
        rows = self.vectors.mean(layers, task.texts)
        full = _fit(rows, WhiteningSpec())
        if full is None:
            return dict.fromkeys(KINDS)
        maps: dict[Whitened, Map | None] = {"none": np.asarray, "task": full, "corpus": soft}
        pairs = [[self.vectors.mean(layers, side) for side in (part.first, part.second)] for part in task.subsets]
        try:
            check_sample_count(len(rows), rows.shape[1], WhiteningSpec())
        except UsageError:
            maps["task"] = None
        return {
            kind: [cosines(mapped(first), mapped(second)) for first, second in pairs] if mapped else None
            for kind, mapped in maps.items()
        }

    def search(self, layers: Combination) -> list[Score]:
        """Score a combination in search, not whitened and whitened softly on the corpus.

        Vectors are compared as bundles of these layers compare them; those that the authors normalise by cosine.
        """
        whole = (Storage("float32", lambda width: 4 * width),)
        kinds: list[tuple[Whitened, Map | None]] = [("none", np.asarray), ("corpus", self.soft_map(layers))]
        scores = []
        for kind, mapped in kinds:
            values: list[float | None] = []
            if mapped is None:
                continue
            for collection in self.collections:
                queries = mapped(self.vectors.mean(layers, list(collection.queries.values())))
                documents = mapped(self.vectors.mean(layers, [collection.documents[name] for name in collection.ids]))
                cosine = self.by_cosine or (layers == self.normalized and kind == "none")
                nearby = nearest(queries.astype(np.float32), [documents.astype(np.float32)], whole, cosine)[0]
                values.append(float(measured(collection, nearby)[MEASURES[0]].mean()))
            scores.append(_score(kind, layers, values))
        return scores

    def rows(self, scores: Sequence[Score]) -> tuple[Row, ...]:
        """Return scores with their intervals, the first of them being the best."""
        if not scores:
            return ()
        cosines_of = {}
        for layers in {score.layers for score in scores}:
            soft = self.soft_map(layers)
            cosines_of[layers] = [self.cosines(task, layers, soft) for task in self.tasks]
        similarities = [[of_task[score.whitening] or [] for of_task in cosines_of[score.layers]] for score in scores]
        draws = resampled(self.tasks, similarities, RESAMPLES, seed=0).mean(axis=1)
        return tuple(
            Row(score=score, interval=interval(draw), difference=interval(draw - draws[0]))
            for score, draw in zip(scores, draws, strict=True)
        )


def _fit(rows: Float64Array, spec: WhiteningSpec) -> WhiteningMap | None:
    """Fit a whitening; None where all vectors are equal up to rounding, as those of layer 0 with cls pooling."""
    try:
        return fit_map(Moments.of(rows), spec)
    except UsageError:
        return None


def _score(whitening: Whitened, layers: Combination, values: Sequence[float | None]) -> Score:
    known = [value for value in values if value is not None]
    average = float(np.mean(known)) if known and len(known) == len(values) else None
    return Score(whitening=whitening, layers=layers, values=tuple(values), average=average)


def best_scores(scores: Sequence[Score], layers: Sequence[int]) -> list[Score]:
    """Return the best score up to each highest layer, the best of all first; of two layers, every score."""
    best: list[Score] = []
    for score in sorted(scores, key=rank):
        lowest = min((row.layers[-1] for row in best), default=np.inf)
        if score.average is not None and (score.layers[-1] < lowest or len(layers) == 2):
            best.append(score)
    return best
