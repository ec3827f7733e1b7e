"""Files of random word vectors."""

from pathlib import Path

import numpy as np


def write_word_vectors(path: Path, texts: list[str], width: int) -> list[str]:
    """Write a random vector for each word of the texts, and return the words."""
    words = sorted({word for text in texts for word in text.lower().split()})
    generator = np.random.default_rng(0)
    rows = (f"{word} {' '.join(f'{x:.4f}' for x in generator.normal(size=width))}" for word in words)
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return words
