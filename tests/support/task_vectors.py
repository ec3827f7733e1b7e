"""Made vectors of a similarity task in several layers, and their scores by a direct computation."""

import numpy as np

from whiten_evaluation.sweep.scoring import TaskVectors, task_vectors
from whiten_evaluation.tasks.sts_files import Task
from whiten_whitening.maps import WhiteningSpec, fit_map
from whiten_whitening.moments import Moments
from whiten_whitening.similarity import cosines, spearman


def made(task: Task, layers: int = 5, width: int = 12, seed: int = 0) -> TaskVectors:
    """Make anisotropic vectors, similar for texts with common words; layer 0 is singular, layer 1 constant."""
    random = np.random.default_rng(seed)
    texts = list(dict.fromkeys(task.texts))
    words = {word: random.normal(size=(layers, width)) for text in texts for word in text.split()}
    scale = np.geomspace(1, 30, width)
    vectors = np.stack([np.mean([words[word] for word in text.split()], axis=0) for text in texts], axis=1) * scale + 3
    vectors[0, :, 0] = vectors[0, :, 1]
    vectors[1] = vectors[1, :1]
    return task_vectors(task, tuple(range(layers)), texts, vectors.astype(np.float32))


def direct_score(
    data: TaskVectors,
    layers: tuple[int, ...],
    spec: WhiteningSpec | None,
    kept: int | None = None,
    corpus: Moments | None = None,
) -> float:
    """Score the mean of some layers' vectors, whitened on the task's texts or on those of other moments."""
    mean = np.mean([data.vectors[layer] for layer in layers], axis=0, dtype=np.float64)
    place = {text: row for row, text in enumerate(dict.fromkeys(data.task.texts))}
    if spec is not None:
        fitted = fit_map(corpus or data.moments(np.float32(mean)), spec)
        mean = (mean - fitted.mean) @ fitted.weight[:, :kept]
    found = []
    for subset in data.task.subsets:
        a, b = (mean[[place[text] for text in column]] for column in (subset.first, subset.second))
        found.append(100 * spearman(cosines(a, b), subset.scores))
    return float(np.mean(found))
