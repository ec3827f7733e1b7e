"""Texts, and the measure by which vectors of other programs are compared with those of `Encoder`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from support.corpus import sentences
from support.nasty_texts import NASTY

TEXTS = [*sentences(40), *NASTY, "long " * 400, "lone \ud800 surrogate \udc00 here"]

Call = Callable[..., Any]
"""Function that runs a program with an input of JSON, and returns what it prints."""


def difference(got: Any, want: Any) -> float:
    """Return the largest difference of a coordinate over the norm of its vector."""
    rows, reference = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert rows.shape == reference.shape
    norms = np.maximum(np.linalg.norm(reference, axis=1), 1e-12)
    return float((np.abs(rows - reference).max(axis=1) / norms).max())
