"""Score semantic textual similarity by the papers' protocol: Spearman's correlation of cosines with people's scores."""

from collections.abc import Sequence

import msgspec
import numpy as np

from whiten_evaluation.embedding import TextVectors, WhiteningSource, whitened
from whiten_evaluation.tasks.sts_files import StsData, Task
from whiten_whitening.moments import Float64Array
from whiten_whitening.similarity import cosines, spearman


class SubsetScore(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the score of one sub-dataset."""

    name: str
    pairs: int
    spearman: float
    """Spearman's correlation, times 100."""


class TaskScore(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the scores of one task, times 100, averaged in the three ways of the literature."""

    name: str
    pairs: int
    mean: float
    """Unweighted mean of the sub-datasets' correlations, as in WhiteningBERT."""
    wmean: float
    """Mean of the sub-datasets' correlations, weighted by their numbers of pairs."""
    all: float
    """Correlation over the pairs of all sub-datasets together."""
    subsets: tuple[SubsetScore, ...]


class StsScores(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the scores of one bundle."""

    tasks: tuple[TaskScore, ...]
    seven: dict[str, float] | None
    """Averages of mean, wmean and all over the seven tasks; None unless all seven ran."""


def task_cosines(task: Task, vectors: TextVectors, whitening: WhiteningSource) -> list[Float64Array]:
    """Return the cosines of a task's pairs, [n] for each sub-dataset.

    With `whitening.source` "target", one whitening is fitted on all sentences of the task, from both columns, with
    repetitions (WhiteningBERT's transductive setting).

    Raises:
        UsageError: the task has too few sentences to fit on.
    """
    fitted = vectors.fit(task.texts, whitening.spec, task.name) if whitening.source == "target" else None
    return [
        cosines(*(whitened(vectors.of(texts), fitted) for texts in (subset.first, subset.second)))
        for subset in task.subsets
    ]


def score_task(task: Task, similarities: Sequence[Float64Array]) -> TaskScore:
    """Correlate similarities, [n] for each sub-dataset, with people's scores."""
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
        vectors: vectors of all sentences of the tasks.
        whitening: the whitening for which the vectors were computed.

    Raises:
        UsageError: a task has too few sentences to fit on.
    """
    tasks = tuple(score_task(task, task_cosines(task, vectors, whitening)) for task in data.tasks)
    return StsScores(tasks=tasks, seven=averages(tasks) if data.complete else None)


def averages(tasks: Sequence[TaskScore]) -> dict[str, float]:
    """Return the averages of mean, wmean and all over tasks."""
    return {kind: float(np.mean([getattr(task, kind) for task in tasks])) for kind in ("mean", "wmean", "all")}
