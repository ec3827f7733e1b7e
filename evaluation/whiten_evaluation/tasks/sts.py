"""Score semantic textual similarity by the papers' protocol: Spearman's correlation of cosines with people's scores."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_evaluation.embedding import Storage, TextVectors
from whiten_evaluation.tasks.sts_files import StsData, Task
from whiten_runtime.bundle.manifest import Manifest, read_manifest
from whiten_runtime.bundle.space import space_of
from whiten_whitening.moments import Float64Array
from whiten_whitening.similarity import cosines, ranks, spearman

LEVEL = 0.95
"""Confidence level of the intervals."""

RESAMPLES = 1000
"""Resamples of the paired bootstrap that the intervals are of."""


class SubsetScore(msgspec.Struct, frozen=True, kw_only=True):
    """Spearman's correlation on one sub-dataset, times 100."""

    name: str
    pairs: int
    spearman: float


class TaskScore(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of one task, times 100, averaged in the three ways of the literature."""

    name: str
    pairs: int
    mean: float
    """Unweighted mean of the sub-datasets' correlations, as in WhiteningBERT."""
    wmean: float
    """Mean of the sub-datasets' correlations, weighted by their numbers of pairs."""
    all: float
    """Correlation over the pairs of all sub-datasets together."""
    subsets: tuple[SubsetScore, ...]


class Interval(msgspec.Struct, frozen=True):
    low: float
    high: float


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of a row to the first one, times 100, with the interval of a paired bootstrap."""

    value: float
    low: float
    high: float
    certain: bool
    """Whether the interval excludes 0."""


class StsScore(msgspec.Struct, frozen=True, kw_only=True):
    bundle: str
    stored: str
    """How the vectors of both texts are stored: "float32" or "codes"."""
    bytes: int
    """Bytes of a vector."""
    space: str
    precision: str
    layers: tuple[int, ...]
    dimension: int
    tasks: tuple[TaskScore, ...]
    averages: dict[str, float]
    """Averages of "mean", "wmean" and "all" over the tasks."""
    differences: tuple[Difference, ...]
    """Difference of each task's mean to that of the first row; none for this row itself."""
    difference: Difference | None
    """Difference of the averages of the means; None for the first row itself."""


@dataclass(frozen=True)
class StsRow:
    """The cosines of a bundle, with its vectors stored in one way: [n] for each sub-dataset of each task."""

    bundle: str
    manifest: Manifest
    stored: str
    bytes: int
    cosines: Sequence[Sequence[NDArray[np.floating]]]


def sts_rows(data: StsData, name: str, bundle: Path, vectors: TextVectors, ways: Sequence[Storage]) -> list[StsRow]:
    """Return the cosines of a bundle's vectors, float32 [m, d], for each way to store them."""
    rows, width = [], vectors.vectors.shape[1]
    for way in ways:
        stored = replace(vectors, vectors=way.document(vectors.vectors))
        cosines_of = [
            [cosines(stored.of(subset.first), stored.of(subset.second)) for subset in task.subsets]
            for task in data.tasks
        ]
        rows.append(StsRow(name, read_manifest(bundle), way.name, way.bytes(width), cosines_of))
    return rows


def score_task(task: Task, similarities: Sequence[NDArray[np.floating]]) -> TaskScore:
    """Correlate similarities, [n] for each sub-dataset, with people's scores."""
    scores = [subset.scores for subset in task.subsets]
    correlations = [100 * spearman(mine, gold) for mine, gold in zip(similarities, scores, strict=True)]
    sizes = [len(gold) for gold in scores]
    return TaskScore(
        name=task.name,
        pairs=sum(sizes),
        mean=float(np.mean(correlations)),
        wmean=float(np.average(correlations, weights=sizes)),
        all=100 * spearman(np.concatenate(similarities), np.concatenate(scores)),
        subsets=tuple(
            SubsetScore(name=subset.name, pairs=size, spearman=score)
            for subset, size, score in zip(task.subsets, sizes, correlations, strict=True)
        ),
    )


def averages(tasks: Sequence[TaskScore]) -> dict[str, float]:
    return {kind: float(np.mean([getattr(task, kind) for task in tasks])) for kind in ("mean", "wmean", "all")}


def resampled(
    tasks: Sequence[Task],
    similarities: Sequence[Sequence[Sequence[NDArray[np.floating]]]],
    resamples: int,
    seed: int,
) -> Float64Array:
    """Return the scores of resampled pairs, times 100, [rows, tasks, resamples].

    The pairs of every sub-dataset are drawn with replacement, as many as there are; all rows see the same draws, so
    that differences between them are paired (Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 8).
    `similarities` are cosines of each row on each task, [n] for each sub-dataset.
    """
    draws = np.zeros((len(similarities), len(tasks), resamples))
    for index, task in enumerate(tasks):
        random = np.random.default_rng((seed, index))
        for place, subset in enumerate(task.subsets):
            columns = np.column_stack([subset.scores, *(row[index][place] for row in similarities)])
            for draw in range(resamples):
                drawn = columns[random.integers(len(columns), size=len(columns))]
                ranked = np.column_stack([ranks(column) for column in drawn.T])
                centred = ranked - ranked.mean(axis=0)
                norms = np.sqrt(np.square(centred).sum(axis=0))
                correlations = centred[:, 0] @ centred / np.where(norms * norms[0] > 0, norms * norms[0], np.inf)
                draws[:, index, draw] += 100 * correlations[1:] / len(task.subsets)
    return draws


def interval(samples: Float64Array) -> Interval:
    """Return the percentile interval of resampled values, [resamples]."""
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def score_sts(data: StsData, rows: Sequence[StsRow]) -> list[StsScore]:
    """Score rows on all tasks, and their differences to the first with the intervals of a paired bootstrap."""
    scored = [tuple(score_task(*pair) for pair in zip(data.tasks, row.cosines, strict=True)) for row in rows]
    draws: Sequence[Float64Array] = ()
    if len(rows) > 1:
        draws = list(resampled(data.tasks, [row.cosines for row in rows], RESAMPLES, seed=0))
    scores = []
    for index, (row, tasks) in enumerate(zip(rows, scored, strict=True)):
        behind = _differences(tasks, scored[0], draws[index] - draws[0]) if index else None
        scores.append(
            StsScore(
                bundle=row.bundle,
                stored=row.stored,
                bytes=row.bytes,
                space=space_of(row.manifest),
                precision=row.manifest.precision,
                layers=row.manifest.layers,
                dimension=row.manifest.dimension,
                tasks=tasks,
                averages=averages(tasks),
                differences=behind[:-1] if behind else (),
                difference=behind[-1] if behind else None,
            )
        )
    return scores


def _differences(tasks: Sequence[TaskScore], first: Sequence[TaskScore], draws: Float64Array) -> tuple[Difference, ...]:
    """Return the difference of each task's mean to the first row's, then that of their average.

    `draws` are the resampled differences, [tasks, resamples].
    """
    values = np.array([task.mean - other.mean for task, other in zip(tasks, first, strict=True)])
    average = averages(tasks)["mean"] - averages(first)["mean"]
    return (*map(difference_of, values.tolist(), draws), difference_of(average, draws.mean(axis=0)))


def difference_of(value: float, draws: Float64Array) -> Difference:
    """Return a difference with the interval of its resampled values, [resamples]."""
    bounds = interval(draws)
    return Difference(value=value, low=bounds.low, high=bounds.high, certain=bounds.low > 0 or bounds.high < 0)
