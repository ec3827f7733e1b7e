"""Compute Spearman's correlation of many combinations of layers from the vectors of single layers.

A combination's vector is the mean of its layers' vectors (WhiteningBERT, section 3.2). Neither cosines nor a whitening
depend on its scale, so that sums can replace means. Two computations then need no pass over the vectors for
each combination:

- Not whitened: with s the indicator vector of the layers and G[i, j] = xᵢ·yⱼ for a pair, x·y = sᵀ G s. One product of
  matrices gives the cosines of all combinations.
- Whitened: the covariance of a sum is the sum of the layers' cross-covariances. Cosines do not change under a rotation,
  so that Cholesky's root, Σ = Rᵀ R and z = R⁻ᵀ (x - μ), serves as well as the eigenvectors of `fit_map`. A soft
  whitening is that of (1 - α) Σ + α tr(Σ) / d, as in `fit_map`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from threadpoolctl import threadpool_limits

from whiten_evaluation.sts import Task
from whiten_evaluation.sweep.layers import LayerVectors
from whiten_runtime.ort.process import map_in_threads
from whiten_whitening.measures import spearman
from whiten_whitening.moments import Float64Array

Combination = tuple[int, ...]
Cosines = list[NDArray[np.floating]]  # [n] for each sub-dataset of a task
Float32Array = NDArray[np.float32]

RIDGE = 8e-6
"""Constant that is added to all eigenvalues, relative to their mean, where `fit_map` raises small ones to a floor.

Scores of all-MiniLM-L6-v2 on STS-B differ by .04 at most; with 1e-6 by .06.
"""

MOST_BYTES = 4_000_000_000
"""Largest size of all cross-covariances; above it, each covariance is computed from the vectors."""

_PAIRS_PER_BLOCK = 256
_ROUNDING = 2.0**-20
"""Largest difference of vectors, relative to their largest entry, that counts as rounding of float32."""


@dataclass(frozen=True)
class TaskVectors:
    task: Task
    layers: tuple[int, ...]
    vectors: Float32Array  # [layers, m, d]
    counts: Float64Array  # how often each text occurs in the task, [m]
    first: tuple[NDArray[np.intp], ...]  # row of each pair's first text, [n] for each sub-dataset
    second: tuple[NDArray[np.intp], ...]

    @classmethod
    def of(cls, task: Task, layers: tuple[int, ...], texts: Sequence[str], vectors: Float32Array) -> "TaskVectors":
        """Join a task's pairs with the vectors of its distinct texts, [layers, m, d]."""
        place = {text: row for row, text in enumerate(texts)}
        counts = np.bincount([place[text] for text in task.texts], minlength=len(texts)).astype(np.float64)
        first, second = (
            tuple(np.array([place[text] for text in column], np.intp) for column in columns)
            for columns in ([subset.first for subset in task.subsets], [subset.second for subset in task.subsets])
        )
        return cls(task, layers, vectors, counts, first, second)

    @classmethod
    def load(cls, vectors: LayerVectors, task: Task) -> "TaskVectors":
        """Read the vectors of a task's texts into memory."""
        texts = tuple(dict.fromkeys(task.texts))
        return cls.of(task, vectors.graph.layers, texts, vectors.of(texts))

    def sum_of(self, layers: Combination) -> Float32Array:
        """Return the sum of some layers' vectors, [m, d]."""
        return np.asarray(np.sum([self.vectors[self.layers.index(layer)] for layer in layers], axis=0), np.float32)

    def score(self, cosines: Sequence[NDArray[np.floating]]) -> float:
        """Return the mean over sub-datasets of Spearman's correlation, times 100."""
        gold = [subset.scores for subset in self.task.subsets]
        return 100 * float(np.mean([spearman(mine, scores) for mine, scores in zip(cosines, gold, strict=True)]))

    def alike(self) -> set[int]:
        """Return the layers in which all texts have the same vector up to rounding, such as layer 0 with cls."""
        same = set()
        for layer, vectors in zip(self.layers, self.vectors, strict=True):
            spread, largest = np.abs(vectors - vectors[0]).max(axis=0), np.abs(vectors[0]).max()
            if (spread <= _ROUNDING * largest).all():
                same.add(layer)
        return same


class LayerMoments:
    """Means and cross-covariances of all layers on one set of texts, for the moments of any combination."""

    def __init__(
        self,
        layers: tuple[int, ...],
        vectors: Float32Array,
        counts: Float64Array,
        shrinkage: float = 0.0,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.shrinkage = shrinkage  # weight of even variances in what is whitened; 0 for a full whitening
        self.n, width = int(counts.sum()), vectors.shape[2]
        self.enough = self.n > width + 1  # else all pairs would be equally similar, as `check_sample_count` says
        self._layers, self._vectors, self._counts = layers, vectors, counts
        self._means = dict(zip(layers, np.einsum("m,lmd->ld", counts, vectors, dtype=np.float64) / self.n, strict=True))
        pairs = list(combinations_with_replacement(layers, 2))
        self._blocks: dict[tuple[int, int], Float64Array] = {}
        if self.enough and len(pairs) * width**2 * 8 <= most_bytes:
            for i, j in pairs:
                a, b = (vectors[layers.index(layer)].astype(np.float64) - self._means[layer] for layer in (i, j))
                block = (a * (counts / (self.n - 1))[:, None]).T @ b
                self._blocks[i, j] = block if i == j else block + block.T

    def of(self, layers: Combination) -> tuple[Float64Array, Float64Array]:
        """Return the mean [d] and the covariance [d, d] of the sum of some layers' vectors."""
        mean = np.sum([self._means[layer] for layer in layers], axis=0)
        if not self._blocks:
            total = np.sum([self._vectors[self._layers.index(layer)] for layer in layers], axis=0, dtype=np.float64)
            centred = total - mean
            return mean, (centred * (self._counts / (self.n - 1))[:, None]).T @ centred
        first, *others = combinations_with_replacement(layers, 2)
        covariance = self._blocks[first].copy()
        for pair in others:
            covariance += self._blocks[pair]
        return mean, covariance


def raw_cosines(data: TaskVectors, combinations: Sequence[Combination]) -> list[Float64Array]:
    """Return the cosines of combinations that are not whitened, [c, n] for each sub-dataset."""
    chosen = np.array([[layer in combination for layer in data.layers] for combination in combinations], np.float64)
    pairs_of_layers = np.einsum("ci,cj->cij", chosen, chosen).reshape(len(chosen), -1)
    cosines_of = []
    for a, b in zip(data.first, data.second, strict=True):
        cosines = np.empty((len(chosen), len(a)))
        for start in range(0, len(a), _PAIRS_PER_BLOCK):
            part = slice(start, start + _PAIRS_PER_BLOCK)
            x, y = (np.moveaxis(data.vectors[:, rows[part]].astype(np.float64), 0, 1) for rows in (a, b))
            grams = [u @ np.swapaxes(v, 1, 2) for u, v in ((x, y), (x, x), (y, y))]
            xy, xx, yy = (pairs_of_layers @ gram.reshape(len(gram), -1).T for gram in grams)
            norms = np.sqrt(np.maximum(xx, 0) * np.maximum(yy, 0))
            cosines[:, part] = xy / np.where(norms > 0, norms, np.inf)
        cosines_of.append(cosines)
    return cosines_of


def whitener(fitted: LayerMoments, layers: Combination) -> Callable[[Float32Array], Float32Array] | None:
    """Return the whitening, up to a rotation, of the sums of some layers' vectors; None if all vectors are equal."""
    mean, covariance = fitted.of(layers)
    even = np.trace(covariance) / len(mean) * np.eye(len(mean))
    shrunk = (1 - fitted.shrinkage) * covariance + (fitted.shrinkage + RIDGE) * even
    try:
        root = cholesky(shrunk, overwrite_a=True, check_finite=False).astype(np.float32)
    except LinAlgError:
        return None
    centre = mean.astype(np.float32)

    def white(rows: Float32Array) -> Float32Array:
        solved = solve_triangular(root, (rows - centre).T, trans=1, overwrite_b=True, check_finite=False)
        return np.asarray(solved.T, np.float32)

    return white


def white_cosines(data: TaskVectors, fitted: LayerMoments, layers: Combination) -> Cosines | None:
    white = whitener(fitted, layers)
    if white is None:
        return None
    rows = white(data.sum_of(layers))
    norms = np.sqrt(np.einsum("nd,nd->n", rows, rows))[:, None]
    unit = rows / np.where(norms > 0, norms, np.float32(np.inf))
    return [np.einsum("nd,nd->n", unit[a], unit[b]) for a, b in zip(data.first, data.second, strict=True)]


def white_scores(
    data: TaskVectors,
    fitted: LayerMoments,
    combinations: Sequence[Combination],
    threads: int = 1,
    advance: Callable[[int], object] = lambda count: None,
) -> list[float | None]:
    """Return the scores of combinations that are whitened, None where nothing can be fitted."""

    def score(layers: Combination) -> float | None:
        cosines = white_cosines(data, fitted, layers) if fitted.enough else None
        return None if cosines is None else data.score(cosines)

    scores = []
    with threadpool_limits(1):  # each combination is scored by one thread
        for row in map_in_threads(score, combinations, threads, "whiten-combinations"):
            scores.append(row)
            advance(1)
    return scores
