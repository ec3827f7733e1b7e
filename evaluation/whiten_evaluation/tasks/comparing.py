"""Compare bundles on the same pairs, each with the first."""

from collections.abc import Sequence

import msgspec
import numpy as np

from whiten_evaluation.tasks.bootstrap import Interval, interval, resampled_task
from whiten_evaluation.tasks.sts import TaskScore, score_task
from whiten_evaluation.tasks.sts_files import StsData
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.space import space_of
from whiten_whitening.moments import Float64Array


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the difference of a bundle to the first one, in correlation times 100."""

    value: float
    low: float
    high: float
    """Upper end of the 95 % interval of a paired bootstrap; `low` is its lower end."""
    certain: bool
    """Whether the interval excludes 0."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the scores of one bundle and its differences to the first."""

    bundle: str
    space: str
    """Id of the space of its vectors; vectors of different spaces cannot be compared."""
    precision: str
    layers: tuple[int, ...]
    dimension: int
    bytes: int
    tasks: tuple[TaskScore, ...]
    average: float
    """Average of the tasks' means."""
    differences: tuple[Difference, ...]
    """Difference to the first bundle on each task; empty for the first."""
    difference: Difference | None
    """Difference of the average to that of the first bundle; None for the first."""


def compare_bundles(
    data: StsData,
    bundles: Sequence[tuple[str, Manifest, int]],
    similarities: Sequence[Sequence[Sequence[Float64Array]]],
    resamples: int,
    seed: int = 0,
) -> list[Row]:
    """Score bundles, and compute their differences to the first.

    Args:
        data: the tasks.
        bundles: name of each bundle, its manifest, and the number of dimensions that were compared.
        similarities: cosines for each bundle and task, [n] for each sub-dataset.
        resamples: number of resamples of the bootstrap.
        seed: seed of the bootstrap's draws.
    """
    resampled = [
        resampled_task(
            [found[index] for found in similarities],
            [subset.scores for subset in task.subsets],
            resamples,
            (seed, index),
        )
        * 100
        for index, task in enumerate(data.tasks)
    ]
    rows: list[Row] = []
    for row, ((name, manifest, dimension), found) in enumerate(zip(bundles, similarities, strict=True)):
        tasks = tuple(score_task(task, part) for task, part in zip(data.tasks, found, strict=True))
        average = float(np.mean([task.mean for task in tasks]))
        differences: tuple[Difference, ...] = ()
        difference = None
        if rows:
            first = rows[0]
            draws = [samples[row] - samples[0] for samples in resampled]
            differences = tuple(
                _difference(task.mean - other.mean, interval(part))
                for task, other, part in zip(tasks, first.tasks, draws, strict=True)
            )
            difference = _difference(average - first.average, interval(np.mean(draws, axis=0)))
        rows.append(
            Row(
                bundle=name,
                space=space_of(manifest),
                precision=manifest.precision,
                layers=manifest.layers,
                dimension=dimension,
                bytes=sum(record.bytes for name, record in manifest.files.items() if name.startswith("onnx/")),
                tasks=tasks,
                average=average,
                differences=differences,
                difference=difference,
            )
        )
    return rows


def _difference(value: float, found: Interval) -> Difference:
    return Difference(value=value, low=found.low, high=found.high, certain=found.excludes_zero)
