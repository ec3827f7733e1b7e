"""Score single layers, pairs of layers, and the best of similarity, in search."""

from collections.abc import Sequence

import numpy as np

from whiten_evaluation.embedding import Storage
from whiten_evaluation.sweep.layers import LayerVectors
from whiten_evaluation.sweep.result import SearchScore
from whiten_evaluation.sweep.scoring import Combination, Float32Array, LayerMoments, whitener
from whiten_evaluation.sweep.search import of_sizes
from whiten_evaluation.tasks.retrieval import MEASURES, measured, nearest
from whiten_runtime.files.collections import Collection
from whiten_runtime.reporter import Reporter
from whiten_whitening.choosing import SOFT_WEIGHT

_WHOLE = (Storage("float32", lambda width: 4 * width),)


def texts_of(collections: Sequence[Collection]) -> list[str]:
    """Return all texts of collections."""
    return [
        text for collection in collections for text in (*collection.queries.values(), *collection.documents.values())
    ]


def score_search(
    vectors: LayerVectors,
    corpus: LayerVectors,
    collections: Sequence[Collection],
    more: set[Combination],
    report: Reporter,
) -> tuple[SearchScore, ...]:
    """Score every layer, every two, and some more combinations, whitened on a corpus and not."""
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
                    nearby = nearest(asked, [searched], _WHOLE)[0]
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
    """Return the vectors as they are and, where a whitening can be fitted, whitened."""
    white = whitener(fitted, layers) if fitted.enough else None
    return [(False, pair)] if white is None else [(False, pair), (True, (white(pair[0]), white(pair[1])))]
