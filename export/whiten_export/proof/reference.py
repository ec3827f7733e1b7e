"""Define a sentence embedding in numpy and float64: every graph is checked against this definition.

WhiteningBERT (Huang et al., EMNLP Findings 2021), section 3; BERT-whitening (Su et al., arXiv 2103.15316), section 3.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_export.proof.modules import Float64Array, Normalize
from whiten_runtime.bundle.manifest import Pooling, PoolingMode, pooling_modes
from whiten_runtime.errors import UsageError


class Reference(Protocol):
    """Computes sentence vectors before whitening, independently of the graph."""

    name: str  # name and precision of the program that computes, for the manifest

    def pooled(self, input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64]) -> Float64Array:
        """Return pooled hidden states of a padded batch, [layers, batch_size, d]; see `Composition` for what follows.

        The mask is 1 for a token, 2 for a token that is left out of the pooling, and 0 for padding.
        """

    def side_by_side(self) -> AbstractContextManager[int]:
        """Yield how many threads may call `pooled` at a time while the context is open; the results do not change."""


@dataclass(frozen=True)
class Head:
    """Computes the head, which follows the composition: whitening and normalisation."""

    affine: tuple[Float64Array, Float64Array] | None  # mean [d] and weight [d, k] of y = (x - mean) W, or None
    normalize: bool  # divide by the L2 norm

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
        return Normalize()(vectors) if self.normalize else vectors


def token_weights(attention_mask: NDArray[np.int64], mode: PoolingMode) -> Float64Array:
    """Return the weight of each token in a pooling that is a weighted sum, [batch_size, sequence_length].

    A text without a token to pool has zeros.
    """
    pooled = (attention_mask == 1).astype(np.float64)
    count = np.maximum(pooled.sum(axis=1, keepdims=True), 1)
    order = np.cumsum(pooled, axis=1)
    first = pooled * (order == 1)
    weights: Float64Array
    match mode:
        case "mean":
            weights = pooled / count
        case "cls":
            weights = first
        case "last":
            weights = pooled * (order == order[:, -1:])
        case "cls_avg":
            weights = (first + pooled / count) / 2
        case "mean_sqrt_len":
            weights = pooled / np.sqrt(count)
        case "weightedmean":
            positions = pooled * np.cumsum(attention_mask > 0, axis=1)
            weights = positions / np.maximum(positions.sum(axis=1, keepdims=True), 1)
        case _:
            raise UsageError(f"pooling '{mode}' is not a weighted sum over the tokens")
    return weights


def weighted_sums(states: Sequence[NDArray[Any]], weights: Float64Array) -> Float64Array:
    """Return weighted sums over tokens of each state [batch_size, sequence_length, d]: [layers, batch_size, d]."""
    return np.stack([np.einsum("bs,bsd->bd", weights, state.astype(np.float64)) for state in states])


def pool(states: Sequence[NDArray[Any]], attention_mask: NDArray[np.int64], pooling: Pooling) -> Float64Array:
    """Pool each state [batch_size, sequence_length, d]; the results of several modes are concatenated."""
    parts = []
    for mode in pooling_modes(pooling):
        if mode == "max":
            parts.append(np.stack([_maximum(state.astype(np.float64), attention_mask == 1) for state in states]))
        else:
            parts.append(weighted_sums(states, token_weights(attention_mask, mode)))
    return np.concatenate(parts, axis=2)


def _maximum(state: Float64Array, pooled: NDArray[np.bool_]) -> Float64Array:
    highest = np.where(pooled[:, :, None], state, -np.inf).max(axis=1)
    return np.where(pooled.any(axis=1, keepdims=True), highest, 0.0)
