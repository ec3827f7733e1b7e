"""Score combinations of layers on every task, all or those of a beam search, and some in search of documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain, combinations

import numpy as np

from whiten_evaluation.embedding import Storage
from whiten_evaluation.retrieval import MEASURES, measured, nearest
from whiten_evaluation.sts import RESAMPLES, Task, interval, resampled
from whiten_evaluation.sweep.layers import LayerVectors
from whiten_evaluation.sweep.result import Best, Score, SearchScore, Whitened, average
from whiten_evaluation.sweep.scoring import (
    Combination,
    Cosines,
    Float32Array,
    LayerMoments,
    TaskVectors,
    raw_cosines,
    white_cosines,
    white_scores,
    whitener,
)
from whiten_runtime.files.judged import Collection
from whiten_runtime.reporter import Reporter
from whiten_whitening.choosing import SOFT_WEIGHT

EXHAUSTIVE = 12
"""Largest number of layers of which all combinations are scored: 4,095 of them."""
BEAM = 8
"""Number of combinations of each size that are extended, for each whitening, where layers are more than that."""


def searched_layers(layers: Sequence[int]) -> Combination:
    """Return the layers whose combinations are searched: all, or without layer 0 if that makes them few enough."""
    blocks = tuple(layer for layer in layers if layer != 0)
    return blocks if len(layers) > EXHAUSTIVE >= len(blocks) else tuple(layers)


def of_sizes(layers: Sequence[int], sizes: range) -> set[Combination]:
    return set(chain.from_iterable(combinations(layers, size) for size in sizes))


@dataclass
class Search:
    """Scores combinations of layers; `scores` has all that were tried, by whitening and layers."""

    vectors: LayerVectors
    corpus: LayerVectors
    tasks: Sequence[Task]
    threads: int
    report: Reporter

    def __post_init__(self) -> None:
        self.layers = self.vectors.graph.layers
        self.scores: dict[tuple[Whitened, Combination], Score] = {}

    @property
    def is_exhaustive(self) -> bool:
        return len(searched_layers(self.layers)) <= EXHAUSTIVE

    def run(self) -> tuple[Score, ...]:
        """Score single layers, pairs and larger combinations, not whitened, on the task, and the best on the corpus."""
        searched, small = searched_layers(self.layers), of_sizes(self.layers, range(1, 3))
        first = small | of_sizes(searched, range(3, len(searched) + 1)) if self.is_exhaustive else small
        extended = "" if self.is_exhaustive else " and their extensions"
        self.report.stage(f"scoring {len(first):,} combinations of layers{extended}")
        self._score(("none", "task"), first)
        for size in () if self.is_exhaustive else range(2, len(searched)):
            more = {
                tuple(sorted({*combination, layer}))
                for combination in self._best(size, BEAM)
                for layer in searched
                if layer not in combination
            }
            self._score(("none", "task"), more)
        larger = (self._best(size, 1) for size in range(3, len(self.layers) + 1))
        self._score(("corpus",), small.union(*larger))
        return tuple(self.scores[key] for key in sorted(self.scores))

    def _score(self, kinds: Sequence[Whitened], chosen: set[Combination]) -> None:
        table: dict[tuple[Whitened, Combination], list[float | None]] = {}
        fitted = self._fitted() if "corpus" in kinds else None
        unit = f"combinations{' on the corpus' if fitted else ''}"
        with self.report.bar(unit, len(chosen) * len(self.tasks)) as advance:
            for task in self.tasks:
                data = TaskVectors.load(self.vectors, task)
                alike = data.alike()
                differing = sorted(layers for layers in chosen if not set(layers) <= alike)
                advance(len(chosen) - len(differing))
                results: dict[tuple[Whitened, Combination], float | None] = {}
                for kind in kinds:
                    if kind == "none":
                        cosines = raw_cosines(data, differing) if differing else []
                        scores: list[float | None] = [
                            data.score([part[index] for part in cosines]) for index in range(len(differing))
                        ]
                    else:
                        moments = fitted or LayerMoments(data.layers, data.vectors, data.counts)
                        scores = white_scores(data, moments, differing, self.threads, advance)
                    results |= {(kind, layers): score for layers, score in zip(differing, scores, strict=True)}
                for kind in kinds:
                    for layers in chosen:
                        table.setdefault((kind, layers), []).append(results.get((kind, layers)))
        for (kind, layers), row in table.items():
            known = [score for score in row if score is not None]
            mean = float(np.mean(known)) if len(known) == len(row) else None
            self.scores[kind, layers] = Score(whitening=kind, layers=layers, tasks=tuple(row), average=mean)

    def _fitted(self) -> LayerMoments:
        vectors = self.corpus.of()
        return LayerMoments(self.layers, vectors, np.ones(vectors.shape[1]), SOFT_WEIGHT)

    def _best(self, size: int, count: int) -> set[Combination]:
        """Return the best combinations of a size without whitening and of those whitened on the task."""
        best: set[Combination] = set()
        for kind in ("none", "task"):
            known = [
                score
                for score in self.scores.values()
                if score.whitening == kind and len(score.layers) == size and score.average is not None
            ]
            best.update(score.layers for score in nlargest(count, known, key=average))
        return best

    def best(self) -> tuple[Best, ...]:
        """Return the best combination up to each highest layer, the best of all first, with intervals."""
        ranked = sorted(self.scores.values(), key=lambda score: (-average(score), len(score.layers), score.layers))
        rows: list[Score] = []
        for score in ranked:
            lowest = min((row.layers[-1] for row in rows), default=max(self.layers) + 1)
            if score.average is not None and score.layers[-1] < lowest:
                rows.append(score)
        if not rows:
            return ()
        self.report.stage("computing intervals of the best combinations")
        draws = resampled(self.tasks, self._cosines(rows), RESAMPLES, seed=0).mean(axis=1)
        return tuple(
            Best(score=row, interval=interval(draw), difference=interval(draw - draws[0]))
            for row, draw in zip(rows, draws, strict=True)
        )

    def _cosines(self, rows: Sequence[Score]) -> list[list[Cosines]]:
        """Return the cosines of some combinations on every task: one list of tasks for each combination."""
        cosines: list[list[Cosines]] = [[] for _ in rows]
        fitted = self._fitted()
        for task in self.tasks:
            data = TaskVectors.load(self.vectors, task)
            own = LayerMoments(data.layers, data.vectors, data.counts)
            for of_row, row in zip(cosines, rows, strict=True):
                if row.whitening == "none":
                    of_row.append([part[0] for part in raw_cosines(data, [row.layers])])
                else:
                    moments = fitted if row.whitening == "corpus" else own
                    of_row.append(white_cosines(data, moments, row.layers) or [])
        return cosines


_WHOLE = (Storage("float32", lambda width: 4 * width),)


def texts_of(collections: Sequence[Collection]) -> list[str]:
    return [
        text for collection in collections for text in (*collection.queries.values(), *collection.documents.values())
    ]


def score_search(
    vectors: LayerVectors,
    corpus: LayerVectors,
    collections: Sequence[Collection],
    more: set[Combination],
    by_cosine: bool,
    unit: Combination | None,
    report: Reporter,
) -> tuple[SearchScore, ...]:
    """Score every layer, every two, and some more combinations, whitened on a corpus and not.

    Vectors are compared as bundles of these layers compare them: by cosine, or by dot product. Those of `unit`, the
    layers whose vectors the authors normalise, are compared by cosine where they are not whitened.
    """
    layers, rows = vectors.graph.layers, corpus.of()
    fitted = LayerMoments(layers, rows, np.ones(rows.shape[1]), SOFT_WEIGHT)
    chosen = sorted(of_sizes(layers, range(1, 3)) | more)
    scores_of: dict[tuple[bool, Combination], list[float]] = {}
    for collection in collections:
        report.stage(f"searching {collection.name}: {len(chosen)} combinations of layers")
        queries = vectors.of(list(collection.queries.values()))
        documents = vectors.of([collection.documents[name] for name in collection.ids])
        with report.bar("combinations", len(chosen)) as advance:
            for combination in chosen:
                places = [layers.index(layer) for layer in combination]
                pair = (queries[places].sum(axis=0), documents[places].sum(axis=0))
                for whitened, (asked, searched) in _maps(pair, fitted, combination):
                    cosine = by_cosine or (combination == unit and not whitened)
                    nearby = nearest(asked, [searched], _WHOLE, cosine)[0]
                    score = float(measured(collection, nearby)[MEASURES[0]].mean())
                    scores_of.setdefault((whitened, combination), []).append(score)
                advance(1)
    return tuple(
        SearchScore(whitened=whitened, layers=combination, collections=tuple(scores), average=float(np.mean(scores)))
        for (whitened, combination), scores in sorted(scores_of.items())
    )


Pair = tuple[Float32Array, Float32Array]
"""Vectors of queries and of documents."""


def _maps(pair: Pair, fitted: LayerMoments, layers: Combination) -> list[tuple[bool, Pair]]:
    white = whitener(fitted, layers) if fitted.enough else None
    return [(False, pair)] if white is None else [(False, pair), (True, (white(pair[0]), white(pair[1])))]
