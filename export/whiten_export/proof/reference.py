"""Define a sentence embedding in numpy and float64: every graph is checked against this definition.

WhiteningBERT (Huang et al., EMNLP Findings 2021), section 3; BERT-whitening (Su et al., arXiv 2103.15316), section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.manifest import Pooling

Float64Array = NDArray[np.float64]

LEAST_NORM = 1e-12
"""Smallest divisor in the normalisation: a vector is divided by its norm or by this, whichever is larger."""


class Reference(Protocol):
    """Computes sentence vectors before whitening, independently of the graph.

    Attributes:
        name: name and precision of the program that computes, for the manifest.
    """

    name: str

    def pooled(self, input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64]) -> Float64Array:
        """Return pooled hidden states of a padded batch, [layers, batch_size, d]; their mean is whitened."""


@dataclass(frozen=True)
class Head:
    """Computes the head, which follows the pooling: whitening and normalisation.

    Attributes:
        affine: mean [d] and weight [d, k] of y = (x - mean) W, or None.
        normalize: divide by the L2 norm.
    """

    affine: tuple[Float64Array, Float64Array] | None
    normalize: bool

    @classmethod
    def of(cls, affine: tuple[ArrayLike, ArrayLike] | None, normalize: bool) -> "Head":
        """Return a head with the map rounded to float32, as in a graph."""
        rounded = [np.asarray(part, np.float32).astype(np.float64) for part in affine or ()]
        return cls((rounded[0], rounded[1]) if rounded else None, normalize)

    def __call__(self, vectors: Float64Array) -> Float64Array:
        """Whiten and normalise, [n, d] to [n, k]."""
        if self.affine is not None:
            mean, weight = self.affine
            vectors = (vectors - mean) @ weight
        if self.normalize:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), LEAST_NORM)
        return vectors


def token_weights(attention_mask: NDArray[np.int64], pooling: Pooling) -> Float64Array:
    """Return the weight of each token in the pooling, [batch_size, sequence_length]; zeros for a text without a token.

    Args:
        attention_mask: 1 for a token and 0 for padding.
        pooling: "mean" over the tokens, "cls" for the first, "last" for the last.
    """
    shares: Float64Array = attention_mask.astype(np.float64)
    if pooling == "mean":
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1)
    else:
        order = np.cumsum(shares, axis=1)
        shares *= order == (1 if pooling == "cls" else order[:, -1:])
    return shares


def pool(states: Sequence[NDArray[Any]], shares: Float64Array) -> Float64Array:
    """Return weighted sums over tokens of each state [batch_size, sequence_length, d]: [layers, batch_size, d]."""
    return np.stack([np.einsum("bs,bsd->bd", shares, state.astype(np.float64)) for state in states])
