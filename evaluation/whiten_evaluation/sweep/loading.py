"""Load a task's stored vectors, and find layers in which they say nothing."""

import numpy as np

from whiten_evaluation.sweep.scoring import TaskVectors, task_vectors
from whiten_evaluation.sweep.store import LayerVectors
from whiten_evaluation.tasks.sts_files import Task
from whiten_runtime.bundle.manifest import Pooling

_ROUNDING = 2.0**-20
"""Largest difference of vectors, relative to their largest entry, that counts as rounding of float32."""


def load_task(vectors: LayerVectors, task: Task, pooling: Pooling) -> TaskVectors:
    """Read the vectors of a task's distinct texts, in all layers, into memory."""
    texts = tuple(dict.fromkeys(task.texts))
    rows = np.array([vectors.rows[text] for text in texts], np.intp)
    return task_vectors(task, vectors.graph.layers, texts, vectors.of(pooling, rows))


def alike_layers(data: TaskVectors) -> set[int]:
    """Return the layers in which all texts have the same vector up to float32 rounding, such as layer 0 with cls."""
    found = set()
    for layer in data.layers:
        vectors = data.layer(layer)
        spread, largest = np.abs(vectors - vectors[0]).max(axis=0), np.abs(vectors[0]).max()
        if (spread <= _ROUNDING * largest).all():
            found.add(layer)
    return found
