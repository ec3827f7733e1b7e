"""Vectors as language models give them, and how far vectors are apart."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from whiten import Encoder
from whiten_runtime.encoder import embedder_of
from whiten_runtime.opened_bundle import encode_options

ROUNDING = 1e-4
"""Whitening multiplies float32 rounding by λ^-½, and a random network has small eigenvalues: the gate's bound."""


def worst(got: ArrayLike, want: ArrayLike) -> float:
    """Return the largest difference of a coordinate over the norm of its vector."""
    one, other = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert one.shape == other.shape
    norms = np.maximum(np.linalg.norm(other, axis=-1, keepdims=True), 1e-12)  # vectors of norm 0 must be equal
    return float((np.abs(one - other) / norms).max(initial=0))


def assert_near(got: ArrayLike, want: ArrayLike, bound: float = 1e-6) -> None:
    """Check that `worst` is at most a bound."""
    found = worst(got, want)
    assert found <= bound, found


def anisotropic(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Return correlated vectors [n, d] far from the origin, one dimension offset by -9 as in BERT."""
    generator = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(generator.normal(size=(d, d)))
    vectors = generator.normal(size=(n, d)) @ (np.logspace(0, -2, d)[:, None] * rotation) + generator.normal(size=d)
    vectors[:, 0] -= 9
    return vectors


def write_word_vectors(path: Path, texts: list[str], width: int) -> list[str]:
    """Write a random vector for each word of the texts, in GloVe's format, and return the words."""
    words = sorted({word for text in texts for word in text.lower().split()})
    generator = np.random.default_rng(0)
    rows = (f"{word} {' '.join(f'{x:.4f}' for x in generator.normal(size=width))}" for word in words)
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return words


def token_ids(encoder: Encoder, texts: Sequence[str], **options: Any) -> list[list[int]]:
    """Return the token ids of texts, as a call of `encode` with these options makes them."""
    return embedder_of(encoder).tokenize(texts, encode_options(encoder, **options)).ids
