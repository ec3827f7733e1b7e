"""Vectors as language models give them: correlated, far from the origin, some coordinates offset."""

import numpy as np


def anisotropic(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Correlated vectors far from the origin, one dimension offset by -9 as in BERT."""
    generator = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(generator.normal(size=(d, d)))
    vectors = generator.normal(size=(n, d)) @ (np.logspace(0, -2, d)[:, None] * rotation) + generator.normal(size=d)
    vectors[:, 0] -= 9
    return vectors
