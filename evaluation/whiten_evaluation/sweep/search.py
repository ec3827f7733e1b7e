"""Score combinations of layers on every task: all combinations, or, where they are too many, those of a beam search."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest

import numpy as np

from whiten_evaluation.sweep.combinations import (
    LIMITS,
    Combination,
    SearchLimits,
    all_combinations,
    extended,
    search_layers,
    singles_and_pairs,
)
from whiten_evaluation.sweep.loading import alike_layers, load_task
from whiten_evaluation.sweep.results import SEARCHED, Score, Whitened
from whiten_evaluation.sweep.scoring import raw_scores, white_scores
from whiten_evaluation.sweep.store import LayerVectors
from whiten_evaluation.tasks.sts_files import Task
from whiten_runtime.bundle.manifest import Pooling
from whiten_runtime.reporter import Reporter

Row = list[float | None]
Table = dict[tuple[Pooling, Whitened, Combination], Row]
"""Scores of each combination, in the order of the tasks; None where all texts have the same vector."""


@dataclass(frozen=True)
class Found:
    """Holds the result of a search.

    Attributes:
        scores: scores of all combinations that were tried.
        searched: layers whose combinations of three and more were searched.
        exhaustive: whether all combinations of `searched` were scored.
    """

    scores: tuple[Score, ...]
    searched: tuple[int, ...]
    exhaustive: bool


def search(
    vectors: LayerVectors, tasks: Sequence[Task], threads: int, report: Reporter, limits: SearchLimits = LIMITS
) -> Found:
    """Score single layers, pairs and larger combinations, not whitened and whitened on each task's own sentences.

    Args:
        vectors: vectors of all layers and poolings.
        tasks: tasks whose sentences were embedded.
        threads: number of combinations that are scored at the same time.
        report: told about progress.
        limits: says how many combinations are scored.
    """
    layers = vectors.graph.layers
    searched = search_layers(layers, limits.exhaustive)
    exhaustive = len(searched) <= limits.exhaustive
    first = singles_and_pairs(layers)
    if exhaustive:
        first = sorted({*first, *all_combinations(searched)})
    report.stage(f"scoring {len(first):,} combinations of layers{'' if exhaustive else ' and their extensions'}")
    table: Table = {}
    for pooling in vectors.graph.poolings:
        _score(vectors, tasks, pooling, first, table, threads, report)
        if not exhaustive:
            for size in range(2, len(searched)):
                if not (best := _best(table, pooling, size, limits.beam)):
                    break
                _score(vectors, tasks, pooling, extended(best, searched), table, threads, report)
    scores = tuple(
        Score(pooling=pooling, whitening=kind, layers=layers, tasks=tuple(row), average=_mean(row))
        for (pooling, kind, layers), row in sorted(table.items())
    )
    return Found(scores, searched, exhaustive)


def _score(
    vectors: LayerVectors,
    tasks: Sequence[Task],
    pooling: Pooling,
    combinations: Sequence[Combination],
    table: Table,
    threads: int,
    report: Reporter,
) -> None:
    with report.bar(f"combinations, {pooling}", len(combinations) * len(tasks)) as advance:
        for task in tasks:
            data = load_task(vectors, task, pooling)
            alike = alike_layers(data)
            differing = [layers for layers in combinations if not set(layers) <= alike]
            advance(len(combinations) - len(differing))
            white = dict(zip(differing, white_scores(data, differing, threads, advance).tolist(), strict=True))
            raw = dict(zip(differing, raw_scores(data, differing).tolist(), strict=True))
            for layers in combinations:
                table.setdefault((pooling, "none", layers), []).append(raw.get(layers))
                found = white.get(layers)
                whitened = None if found is None or np.isnan(found) else found
                table.setdefault((pooling, "target", layers), []).append(whitened)


def _best(table: Table, pooling: Pooling, size: int, beam: int) -> list[Combination]:
    best: set[Combination] = set()
    for kind in SEARCHED:
        known = {key[2]: _mean(row) for key, row in table.items() if key[:2] == (pooling, kind) and len(key[2]) == size}
        scored = {layers: mean for layers, mean in known.items() if mean is not None}
        best.update(nlargest(beam, scored, key=lambda layers: scored[layers]))
    return sorted(best)


def _mean(row: Row) -> float | None:
    known = [score for score in row if score is not None]
    return float(np.mean(known)) if len(known) == len(row) else None
