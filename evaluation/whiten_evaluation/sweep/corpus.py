"""Score combinations of layers whitened on a corpus, as an export whitens them: one fit serves all tasks.

A fit is needed for each combination, so that not all of them are scored: every single layer, every two, and the best
combination of each size.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from whiten_evaluation.sweep.combinations import Combination, singles_and_pairs
from whiten_evaluation.sweep.loading import alike_layers, load_task
from whiten_evaluation.sweep.results import SEARCHED, Score, average
from whiten_evaluation.sweep.roots import whitening_root
from whiten_evaluation.sweep.scoring import Float32Array, TaskVectors, white_score
from whiten_evaluation.sweep.store import LayerVectors
from whiten_evaluation.tasks.sts_files import Task
from whiten_runtime.bundle.manifest import Pooling
from whiten_runtime.files.corpus import Corpus
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import ADVISED_RATIO
from whiten_whitening.moments import Float64Array, Moments

_FITS_AT_ONCE = 64
"""Number of fits that are in memory together: 150 MB for 768 dimensions."""


@dataclass(frozen=True)
class FitCorpus:
    """Holds the sentences that whitenings are fitted on.

    Attributes:
        name: names of the sources.
        texts: distinct sentences.
    """

    name: str
    texts: tuple[str, ...]


def read_corpus(sources: tuple[str, ...], width: int) -> FitCorpus:
    """Read sources, and take evenly spaced sentences of them: ten for each dimension, which is what a fit needs.

    Args:
        sources: files, or the name of the built-in corpus.
        width: number of dimensions of a vector, d.

    Raises:
        UsageError: a file does not exist.
        DataError: a source cannot be read or holds no sentence.
    """
    corpus = Corpus(sources, None, None)
    corpus.count()
    texts = tuple(dict.fromkeys(corpus))
    places = np.linspace(0, len(texts) - 1, min(ADVISED_RATIO * width, len(texts))).astype(np.intp)
    return FitCorpus(", ".join(record.name for record in corpus.records), tuple(texts[place] for place in places))


def corpus_scores(
    vectors: LayerVectors,
    corpus: LayerVectors,
    tasks: Sequence[Task],
    scores: Sequence[Score],
    threads: int,
    report: Reporter,
) -> Iterator[Score]:
    """Yield the scores of single layers, pairs and the best combinations, each whitened on the corpus.

    Args:
        vectors: vectors of the tasks' texts.
        corpus: vectors of the corpus, which count once each.
        tasks: tasks whose sentences were embedded.
        scores: scores without whitening and with that on target, which say what the best combinations are.
        threads: number of combinations that are fitted at the same time.
        report: told about progress.
    """
    for pooling in vectors.graph.poolings:
        chosen = _chosen(vectors.graph.layers, pooling, scores)
        table: dict[Combination, list[float | None]] = {layers: [] for layers in chosen}
        with report.bar(f"combinations, {pooling}", len(chosen) * len(tasks)) as advance:
            for start in range(0, len(chosen), _FITS_AT_ONCE):
                part = chosen[start : start + _FITS_AT_ONCE]
                fits = _fits(corpus, pooling, part, threads)
                for task in tasks:
                    data = load_task(vectors, task, pooling)
                    for layers, score in zip(part, _scored(data, part, fits), strict=True):
                        table[layers].append(score)
                    advance(len(part))
        for layers, row in table.items():
            known = [score for score in row if score is not None]
            mean = float(np.mean(known)) if len(known) == len(row) else None
            yield Score(pooling=pooling, whitening="corpus", layers=layers, tasks=tuple(row), average=mean)


def _chosen(layers: tuple[int, ...], pooling: Pooling, scores: Sequence[Score]) -> list[Combination]:
    best: dict[tuple[str, int], Score] = {}
    for score in scores:
        if score.pooling == pooling and score.whitening in SEARCHED and score.average is not None:
            key = score.whitening, len(score.layers)
            if key not in best or average(score) > average(best[key]):
                best[key] = score
    return sorted({*singles_and_pairs(layers), *(score.layers for score in best.values())})


@dataclass(frozen=True)
class _Fit:
    """Holds a whitening of the sum of some layers' vectors."""

    mean: Float64Array
    root: Callable[[Float32Array], Float32Array]


def _fits(
    corpus: LayerVectors, pooling: Pooling, combinations: Sequence[Combination], threads: int
) -> list[_Fit | None]:
    """Return the whitening of each combination; None where there are too few sentences, or all have one vector."""
    layers = corpus.graph.layers
    table = corpus.of(pooling, np.arange(len(corpus.rows)))

    def fit(combination: Combination) -> _Fit | None:
        moments = Moments.of(np.sum([table[layers.index(layer)] for layer in combination], axis=0))
        if moments.n <= len(moments.mean) + 1:  # as in `check_sample_count`: all pairs would be equally similar
            return None
        root = whitening_root(moments.n, moments.mean, moments.covariance)
        return None if root is None else _Fit(moments.mean, root)

    with threadpool_limits(1), ThreadPoolExecutor(threads, "whiten-corpus") as executor:
        return list(executor.map(fit, combinations))


def _scored(
    data: TaskVectors, combinations: Sequence[Combination], fits: Sequence[_Fit | None]
) -> Iterator[float | None]:
    alike = alike_layers(data)
    for layers, fitted in zip(combinations, fits, strict=True):
        if fitted is None or set(layers) <= alike:
            yield None
        else:
            yield white_score(data, data.sum_of(layers), fitted.mean, fitted.root)
