"""Score semantic textual similarity by the papers' protocol: Spearman's correlation of cosines with people's scores."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_evaluation.embedding import TextVectors, WhiteningSource
from whiten_evaluation.tasks.sts_files import StsData, Task
from whiten_runtime.bundle.manifest import Manifest, read_manifest
from whiten_runtime.bundle.space import space_of
from whiten_whitening.codes.coder import Coder
from whiten_whitening.maps import whitened
from whiten_whitening.moments import Float64Array
from whiten_whitening.similarity import cosines, spearman

SIZES = (16, 32, 48, 64, 96, 128, 192)
"""Bytes of a code to try, as far as the vectors have dimensions for them."""

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


class StsScores(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of one bundle; `seven` has averages over the seven tasks, None unless all seven ran."""

    tasks: tuple[TaskScore, ...]
    seven: dict[str, float] | None


class Interval(msgspec.Struct, frozen=True):
    """A percentile interval at the confidence `LEVEL`."""

    low: float
    high: float


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of a bundle to the first one, times 100, with the interval of a paired bootstrap."""

    value: float
    low: float
    high: float
    certain: bool
    """Whether the interval excludes 0."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of one bundle, and its differences to the first: None and empty for the first itself."""

    bundle: str
    space: str
    precision: str
    layers: tuple[int, ...]
    dimension: int
    bytes: int
    tasks: tuple[TaskScore, ...]
    average: float
    """Average of the tasks' means."""
    differences: tuple[Difference, ...]
    difference: Difference | None


class CodeScore(msgspec.Struct, frozen=True, kw_only=True):
    """The score of one kind of code."""

    name: str
    """Kind: "float32", "int8" (a scale for each vector), "binary" (signs of the vectors as they are), "codes"."""
    dims: int
    bytes: int
    spearman: float
    """Mean of the tasks, times 100; each task's mean over its sub-datasets."""
    tasks: dict[str, float]
    front: bool = False
    """Whether no other kind has a higher score in as few bytes."""


def task_cosines(task: Task, vectors: TextVectors, whitening: WhiteningSource) -> list[Float64Array]:
    """Return the cosines of a task's pairs, [n] for each sub-dataset.

    On "task", one whitening is fitted on all sentences of the task, from both columns, with repetitions
    (WhiteningBERT's transductive setting).
    """
    fitted = vectors.fit(task.texts, whitening.spec, task.name) if whitening.source == "task" else None
    return [
        cosines(*(whitened(vectors.of(texts), fitted) for texts in (subset.first, subset.second)))
        for subset in task.subsets
    ]


def score_task(task: Task, similarities: Sequence[Float64Array]) -> TaskScore:
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


def score_sts(data: StsData, vectors: TextVectors, whitening: WhiteningSource) -> StsScores:
    """Score all tasks of a directory with the vectors that were computed for a whitening."""
    tasks = tuple(score_task(task, task_cosines(task, vectors, whitening)) for task in data.tasks)
    return StsScores(tasks=tasks, seven=averages(tasks) if data.complete else None)


def averages(tasks: Sequence[TaskScore]) -> dict[str, float]:
    """Return the averages of mean, wmean and all over tasks."""
    return {kind: float(np.mean([getattr(task, kind) for task in tasks])) for kind in ("mean", "wmean", "all")}


def resampled(
    tasks: Sequence[Task],
    similarities: Sequence[Sequence[Sequence[NDArray[np.floating]]]],
    resamples: int,
    seed: int,
) -> Float64Array:
    """Return the scores of resampled pairs, times 100, [bundles, tasks, resamples].

    The pairs of every sub-dataset are drawn with replacement, as many as there are; all bundles see the same draws, so
    that differences between them are paired (Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 8).
    `similarities` are cosines of each bundle on each task, [n] for each sub-dataset.
    """
    from scipy.stats import rankdata

    draws = np.zeros((len(similarities), len(tasks), resamples))
    for index, task in enumerate(tasks):
        random = np.random.default_rng((seed, index))
        for place, subset in enumerate(task.subsets):
            columns = np.column_stack([subset.scores, *(bundle[index][place] for bundle in similarities)])
            for draw in range(resamples):
                ranks = rankdata(columns[random.integers(len(columns), size=len(columns))], axis=0)
                centred = ranks - ranks.mean(axis=0)
                norms = np.sqrt(np.square(centred).sum(axis=0))
                correlations = centred[:, 0] @ centred / np.where(norms * norms[0] > 0, norms * norms[0], np.inf)
                draws[:, index, draw] += 100 * correlations[1:] / len(task.subsets)
    return draws


def interval(samples: Float64Array) -> Interval:
    """Return the percentile interval of resampled values, [resamples]."""
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def compare_bundles(
    data: StsData,
    bundles: Sequence[tuple[str, Manifest, int]],
    similarities: Sequence[Sequence[Sequence[Float64Array]]],
    resamples: int = RESAMPLES,
) -> list[Row]:
    """Score bundles, given by name, manifest and number of dimensions, and their differences to the first."""
    draws = resampled(data.tasks, similarities, resamples, seed=0)
    rows: list[Row] = []
    for index, ((name, manifest, dimension), cosines_of) in enumerate(zip(bundles, similarities, strict=True)):
        tasks = tuple(score_task(task, part) for task, part in zip(data.tasks, cosines_of, strict=True))
        average = float(np.mean([task.mean for task in tasks]))
        differences: tuple[Difference, ...] = ()
        difference = None
        if rows:
            behind = draws[index] - draws[0]
            differences = tuple(
                difference_of(task.mean - other.mean, part)
                for task, other, part in zip(tasks, rows[0].tasks, behind, strict=True)
            )
            difference = difference_of(average - rows[0].average, behind.mean(axis=0))
        rows.append(
            Row(
                bundle=name,
                space=space_of(manifest),
                precision=manifest.precision,
                layers=manifest.layers,
                dimension=dimension,
                bytes=sum(record.bytes for file, record in manifest.files.items() if file.startswith("onnx/")),
                tasks=tasks,
                average=average,
                differences=differences,
                difference=difference,
            )
        )
    return rows


def difference_of(value: float, draws: Float64Array) -> Difference:
    """Return a difference with the interval of its resampled values, [resamples]."""
    bounds = interval(draws)
    return Difference(value=value, low=bounds.low, high=bounds.high, certain=bounds.low > 0 or bounds.high < 0)


def score_codes(bundle: Path, data: StsData, vectors: TextVectors, sizes: Sequence[int] = ()) -> tuple[CodeScore, ...]:
    """Score float32, int8 and signs, then codes of some bytes if the bundle stores moments, by the cosines of codes.

    Without `sizes`, those of `SIZES` are scored that the bundle's coder can have.
    """
    rows = []
    for name, size, decoded in _codes(bundle, vectors.vectors, sizes):
        scores = score_sts(data, replace(vectors, vectors=decoded), WhiteningSource())
        tasks = {task.name: task.mean for task in scores.tasks}
        mean, dims = float(np.mean(list(tasks.values()))), decoded.shape[1]
        rows.append(CodeScore(name=name, dims=dims, bytes=size, spearman=mean, tasks=tasks))
    return with_front(rows)


def _codes(
    bundle: Path, vectors: NDArray[np.float32], sizes: Sequence[int]
) -> Iterator[tuple[str, int, NDArray[np.float32]]]:
    """Yield name, bytes and decoded vectors of each kind of code."""
    width = vectors.shape[1]
    steps = np.maximum(np.abs(vectors).max(axis=1, keepdims=True) / np.float32(127), np.finfo(np.float32).tiny)
    yield "float32", 4 * width, vectors
    yield "int8", width + 4, np.rint(vectors / steps) * steps
    # The signs of the coordinates, as sentence-transformers' binary quantisation has them.
    yield "binary", -(-width // 8), np.where(vectors > 0, np.float32(1), np.float32(-1))
    if read_manifest(bundle).whitening is not None:
        for size in sizes or [size for size in SIZES if 2 * size <= width]:
            coder = Coder.of(bundle, size)
            yield "codes", size, coder.decode(coder.encode_array(vectors))


def with_front(rows: Sequence[CodeScore]) -> tuple[CodeScore, ...]:
    """Mark the kinds that no other has beaten: none has a higher score in as few bytes, or as high a one in fewer."""

    def beaten(one: CodeScore) -> bool:
        return any(
            other.spearman >= one.spearman
            and other.bytes <= one.bytes
            and (other.spearman, -other.bytes) != (one.spearman, -one.bytes)
            for other in rows
        )

    return tuple(msgspec.structs.replace(one, front=not beaten(one)) for one in rows)
