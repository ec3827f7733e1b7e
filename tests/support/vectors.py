"""How far vectors are apart."""

import numpy as np

ROUNDING = 1e-4
"""Whitening multiplies float32 rounding by λ^-½, and a random network has small eigenvalues: the gate's bound."""


def worst(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference relative to the norm."""
    return float((np.abs(a - b).max(axis=-1) / np.linalg.norm(b, axis=-1)).max())
