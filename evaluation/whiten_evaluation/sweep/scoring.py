"""Compute Spearman's correlation of many combinations of layers from the vectors of single layers.

A combination's vector is the mean of its layers' vectors (WhiteningBERT, section 3.2). Neither cosines nor a full
whitening depend on its scale, so that sums can replace means. Two computations then need no pass over the vectors for
each combination:

- Not whitened: with s the indicator vector of the layers and G[i, j] = xᵢ·yⱼ for a pair, x·y = sᵀ G s. One product of
  matrices gives the cosines of all combinations.
- Whitened: the covariance of a sum is the sum of the layers' cross-covariances, and `inverse_root` is cheaper than a
  fit.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations_with_replacement
from threading import Event, Lock
from typing import cast

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from whiten_evaluation.sweep.combinations import Combination
from whiten_evaluation.sweep.roots import whitening_root
from whiten_evaluation.tasks.sts_files import Task
from whiten_whitening.moments import Float64Array, Moments
from whiten_whitening.similarity import spearman

Float32Array = NDArray[np.float32]

_PAIRS_AT_ONCE = 256
MOST_BYTES = 4_000_000_000
"""Largest size in bytes of all cross-covariances; above it, each covariance is computed from the vectors."""


@dataclass(frozen=True)
class TaskVectors:
    """Holds a task's distinct texts with the vectors of all layers.

    Attributes:
        task: the task.
        layers: indices of the layers, as hidden states.
        vectors: vectors of the distinct texts, float32 [layers, m, d].
        counts: number of times that each text occurs in the task, [m].
        first: row of each pair's first text, [n] for each sub-dataset.
        second: row of each pair's second text, [n] for each sub-dataset.
    """

    task: Task
    layers: tuple[int, ...]
    vectors: Float32Array
    counts: Float64Array
    first: tuple[NDArray[np.intp], ...]
    second: tuple[NDArray[np.intp], ...]

    def layer(self, layer: int) -> Float32Array:
        """Return the vectors of a layer, [m, d]."""
        return cast(Float32Array, self.vectors[self.layers.index(layer)])

    def sum_of(self, layers: Combination) -> Float32Array:
        """Return the sum of some layers' vectors, [m, d]."""
        return cast(Float32Array, np.sum([self.layer(layer) for layer in layers], axis=0))

    def moments(self, vectors: Float32Array) -> Moments:
        """Return the moments of vectors [m, d], each counted as often as its text occurs."""
        return Moments.of(np.repeat(vectors, self.counts.astype(np.intp), axis=0))

    def score(self, unit: NDArray[np.floating]) -> float:
        """Return the mean over sub-datasets of the correlation, times 100, for unit vectors [m, d]."""
        return self.score_cosines(
            [np.einsum("nd,nd->n", unit[a], unit[b]) for a, b in zip(self.first, self.second, strict=True)]
        )

    def score_cosines(self, cosines: Sequence[NDArray[np.floating]]) -> float:
        """Return the mean over sub-datasets of the correlation, times 100, for cosines, [n] for each sub-dataset."""
        gold = [subset.scores for subset in self.task.subsets]
        return 100 * float(np.mean([spearman(mine, scores) for mine, scores in zip(cosines, gold, strict=True)]))


def task_vectors(task: Task, layers: tuple[int, ...], texts: Sequence[str], vectors: Float32Array) -> TaskVectors:
    """Join a task's pairs with the vectors of its texts.

    Args:
        task: the task.
        layers: layers of the vectors.
        texts: distinct texts of the task.
        vectors: vectors of these texts, [layers, m, d].
    """
    place = {text: row for row, text in enumerate(texts)}
    counts = np.zeros(len(texts))
    np.add.at(counts, [place[text] for text in task.texts], 1)
    first, second = (
        tuple(np.array([place[text] for text in column], np.intp) for column in columns)
        for columns in ([subset.first for subset in task.subsets], [subset.second for subset in task.subsets])
    )
    return TaskVectors(task, layers, vectors, counts, first, second)


def raw_scores(data: TaskVectors, combinations: Sequence[Combination]) -> Float64Array:
    """Return the scores of combinations that are not whitened, [c]."""
    if not combinations:
        return np.empty(0)
    chosen = np.array([[layer in found for layer in data.layers] for found in combinations], np.float64)
    pairs_of_layers = np.einsum("ci,cj->cij", chosen, chosen).reshape(len(chosen), -1).T
    found: list[Float64Array] = []
    for a, b in zip(data.first, data.second, strict=True):
        cosines = np.empty((len(a), len(chosen)))
        for start in range(0, len(a), _PAIRS_AT_ONCE):
            part = slice(start, start + _PAIRS_AT_ONCE)
            x, y = (np.moveaxis(data.vectors[:, rows[part]].astype(np.float64), 0, 1) for rows in (a, b))
            grams = [u @ np.swapaxes(v, 1, 2) for u, v in ((x, y), (x, x), (y, y))]
            xy, xx, yy = (gram.reshape(len(gram), -1) @ pairs_of_layers for gram in grams)
            norms = np.sqrt(np.maximum(xx, 0) * np.maximum(yy, 0))
            cosines[part] = xy / np.where(norms > 0, norms, np.inf)
        found.append(cosines)
    return np.array([data.score_cosines([part[:, index] for part in found]) for index in range(len(chosen))])


def white_scores(
    data: TaskVectors,
    combinations: Sequence[Combination],
    threads: int = 1,
    advance: Callable[[int], object] = lambda count: None,
    most_bytes: int = MOST_BYTES,
) -> Float64Array:
    """Return the scores of combinations that are fully whitened on the task's own texts, [c].

    A score is NaN where all vectors are equal, or where the task has too few texts to whiten on.

    Args:
        data: vectors of the task.
        combinations: combinations, sorted, so that those with the same first layers share sums.
        threads: number of combinations that are scored at the same time, each by one thread.
        advance: called with the number of combinations that were scored since the last call.
        most_bytes: largest size of all cross-covariances; above it, covariances are computed from the vectors.
    """
    if (
        not combinations or data.counts.sum() <= data.vectors.shape[2] + 1
    ):  # as in `check_sample_count`: all pairs would be equally similar
        advance(len(combinations))
        return np.full(len(combinations), np.nan)
    with threadpool_limits(1), ThreadPoolExecutor(threads, "whiten-combinations") as executor:
        layers = sorted({layer for found in combinations for layer in found})
        covariances = Covariances(data, layers, executor, most_bytes)
        lock, stopped = Lock(), Event()

        def score(part: Sequence[Combination]) -> list[float]:
            walk = _Walk(data, covariances)
            scores = []
            for found in part:
                if stopped.is_set():
                    break
                scores.append(_target_score(data, *walk.to(found)))
                with lock:
                    advance(1)
            return scores

        size = max(1, len(combinations) // (16 * threads))
        parts = [combinations[start : start + size] for start in range(0, len(combinations), size)]
        try:
            return np.array([found for part in executor.map(score, parts) for found in part])
        finally:
            stopped.set()  # so that threads do not finish their parts after an interruption


class Covariances:
    """Computes means and covariances of a task's layers, and cross-covariances of every pair, shared by all threads.

    Args:
        data: vectors of the task.
        layers: layers of the combinations that will be scored.
        executor: executor that computes the covariances.
        most_bytes: largest size of all cross-covariances.
    """

    def __init__(
        self, data: TaskVectors, layers: Sequence[int], executor: Executor, most_bytes: int = MOST_BYTES
    ) -> None:
        self._data = data
        self._shares = data.counts / data.counts.sum()
        self._weights = weights = (data.counts / (data.counts.sum() - 1))[:, None]
        self.means = {layer: self._shares @ data.layer(layer).astype(np.float64) for layer in layers}
        pairs = list(combinations_with_replacement(layers, 2))
        self.few = len(pairs) * data.vectors.shape[2] ** 2 * 8 <= most_bytes
        self._blocks: dict[tuple[int, int], Float64Array] = {}
        if self.few:

            def block(pair: tuple[int, int]) -> Float64Array:
                a, b = (data.layer(layer).astype(np.float64) - self.means[layer] for layer in pair)
                return np.asarray((a * weights).T @ b)

            self._blocks = dict(zip(pairs, executor.map(block, pairs), strict=True))

    def added(self, known: Combination, layer: int) -> Float64Array:
        """Return the change of a sum's covariance when a layer is added to the sum of the layers `known`, [d, d]."""
        added = self._blocks[layer, layer].copy()
        if known:
            cross = sum((self._blocks[other, layer] for other in known[1:]), self._blocks[known[0], layer])
            added += cross
            added += cross.T
        return added

    def direct(self, vectors: Float32Array) -> Float64Array:
        """Return the covariance of vectors [m, d], computed from the vectors themselves."""
        centred = vectors - (self._shares @ vectors.astype(np.float64))
        return np.asarray((centred * self._weights).T @ centred)


@dataclass(frozen=True)
class _Step:
    """Holds sums over the first layers of a combination."""

    layers: Combination
    vectors: Float32Array
    mean: Float64Array
    covariance: Float64Array | None


class _Walk:
    """Computes sums for one combination after another, and keeps those over the first layers that they share."""

    def __init__(self, data: TaskVectors, covariances: Covariances) -> None:
        self._data, self._covariances = data, covariances
        self._steps: list[_Step] = []

    def to(self, layers: Combination) -> tuple[Float32Array, Float64Array, Float64Array]:
        """Return the sum of the layers' vectors, its mean and its covariance."""
        while self._steps and self._steps[-1].layers != layers[: len(self._steps[-1].layers)]:
            self._steps.pop()
        for layer in layers[len(self._steps) :]:
            self._steps.append(self._next(layer))
        last = self._steps[-1]
        covariance = self._covariances.direct(last.vectors) if last.covariance is None else last.covariance
        return last.vectors, last.mean, covariance

    def _next(self, layer: int) -> _Step:
        vectors, mean = self._data.layer(layer), self._covariances.means[layer]
        few = self._covariances.few
        if not self._steps:
            return _Step((layer,), vectors, mean, self._covariances.added((), layer) if few else None)
        last = self._steps[-1]
        added = self._covariances.added(last.layers, layer) if few else None
        covariance = None if added is None or last.covariance is None else last.covariance + added
        return _Step((*last.layers, layer), last.vectors + vectors, last.mean + mean, covariance)


def white_score(
    data: TaskVectors, vectors: Float32Array, mean: Float64Array, root: Callable[[Float32Array], Float32Array]
) -> float:
    """Return the score of vectors [m, d] that are centred on a mean, [d], and then whitened by `root`."""
    white = root(vectors - mean.astype(np.float32))
    norms = np.sqrt(np.einsum("nd,nd->n", white, white))[:, None]
    return data.score(white / np.where(norms > 0, norms, np.float32(np.inf)))


def _target_score(data: TaskVectors, vectors: Float32Array, mean: Float64Array, covariance: Float64Array) -> float:
    root = whitening_root(int(data.counts.sum()), mean, covariance)
    return float("nan") if root is None else white_score(data, vectors, mean, root)
