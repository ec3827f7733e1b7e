"""Semantic textual similarity by the papers' protocol: Spearman's correlation between cosines and people's scores."""

from collections.abc import Sequence

import msgspec
import numpy as np

from whiten_evaluation.embedding import TextVectors, WhiteningSource, whitened
from whiten_evaluation.tasks.sts_files import StsData, Task
from whiten_whitening.moments import Float64Array
from whiten_whitening.similarity import cosines, spearman


class SubsetScore(msgspec.Struct, frozen=True, kw_only=True):
    """Of one sub-dataset."""

    name: str
    pairs: int
    spearman: float
    """Times 100."""


class TaskScore(msgspec.Struct, frozen=True, kw_only=True):
    """Of one task, times 100, in the three ways of the literature."""

    name: str
    pairs: int
    mean: float
    """Of the sub-datasets' correlations, each counted alike: WhiteningBERT's."""
    wmean: float
    """The same, each weighed by its pairs."""
    all: float
    """One correlation over all pairs."""
    subsets: tuple[SubsetScore, ...]


class StsScores(msgspec.Struct, frozen=True, kw_only=True):
    """Of one bundle."""

    tasks: tuple[TaskScore, ...]
    seven: dict[str, float] | None
    """mean, wmean and all, averaged over the seven tasks; None unless all seven ran."""


def task_cosines(task: Task, vectors: TextVectors, whitening: WhiteningSource) -> list[Float64Array]:
    """Cosines of a task's pairs, [n] for each sub-dataset.

    With `whitening.source` "target", one whitening is fitted on all sentences of the task, both columns, repeated ones
    counted as often as they come (WhiteningBERT's transductive setting).

    Raises:
        UsageError: the task has too few sentences to fit on.
    """
    fitted = vectors.fit(task.texts, whitening.spec, task.name) if whitening.source == "target" else None
    return [
        cosines(*(whitened(vectors.of(texts), fitted) for texts in (subset.first, subset.second)))
        for subset in task.subsets
    ]


def score_task(task: Task, similarities: Sequence[Float64Array]) -> TaskScore:
    """Correlate similarities, [n] for each sub-dataset, with the scores."""
    scores = [subset.scores for subset in task.subsets]
    found = [100 * spearman(mine, gold) for mine, gold in zip(similarities, scores, strict=True)]
    sizes = [len(gold) for gold in scores]
    return TaskScore(
        name=task.name,
        pairs=sum(sizes),
        mean=float(np.mean(found)),
        wmean=float(np.average(found, weights=sizes)),
        all=100 * spearman(np.concatenate(similarities), np.concatenate(scores)),
        subsets=tuple(
            SubsetScore(name=subset.name, pairs=size, spearman=score)
            for subset, size, score in zip(task.subsets, sizes, found, strict=True)
        ),
    )


def score_sts(data: StsData, vectors: TextVectors, whitening: WhiteningSource) -> StsScores:
    """Score all tasks of a directory.

    Args:
        data: the tasks.
        vectors: of all their sentences.
        whitening: what the vectors were made for.

    Raises:
        UsageError: a task has too few sentences to fit on.
    """
    tasks = tuple(score_task(task, task_cosines(task, vectors, whitening)) for task in data.tasks)
    return StsScores(tasks=tasks, seven=averages(tasks) if data.complete else None)


def averages(tasks: Sequence[TaskScore]) -> dict[str, float]:
    """mean, wmean and all, averaged over tasks."""
    return {kind: float(np.mean([getattr(task, kind) for task in tasks])) for kind in ("mean", "wmean", "all")}
