"""Define what every vector of a bundle has to be, in numpy and float64: average of layers, modules, head."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import erf

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.manifest import Pooling, pooling_modes

Float64Array = NDArray[np.float64]
Float32Array = NDArray[np.float32]

LEAST_NORM = 1e-12
"""Smallest divisor in the normalisation: a vector is divided by its norm or by this, whichever is larger."""

_erf = np.vectorize(erf, otypes=[np.float64])

ACTIVATIONS: Mapping[str, Callable[[Float64Array], Float64Array]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "GELU": lambda x: x * 0.5 * (1 + _erf(x / np.sqrt(2))),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "SiLU": lambda x: x / (1 + np.exp(-x)),
}
"""Activation functions by the name of their class in torch.nn, with its default arguments."""


class Module:
    """Changes vectors between the pooling and the whitening."""

    def __call__(self, vectors: Float64Array) -> Float64Array:
        """Apply it to float64 [n, d], giving [n, k]."""
        raise NotImplementedError

    def width(self, before: int) -> int:
        """Return k for d."""
        return before

    def __str__(self) -> str:
        return type(self).__name__


@dataclass(frozen=True)
class Dense(Module):
    """Applies an affine map and an activation function: y = f(x W + b) + x R."""

    weight: Float32Array  # W, float32 [d, k]
    bias: Float32Array | None  # b, float32 [k]; None for none
    activation: str  # name of f, one of `ACTIVATIONS`
    residual: Float32Array | None = None  # R, float32 [d, k]; None for no residual connection

    def __call__(self, vectors: Float64Array) -> Float64Array:
        linear = vectors @ self.weight.astype(np.float64)
        if self.bias is not None:
            linear = linear + self.bias.astype(np.float64)
        result = ACTIVATIONS[self.activation](linear)
        return result if self.residual is None else result + vectors @ self.residual.astype(np.float64)

    def width(self, before: int) -> int:
        return int(self.weight.shape[1])

    def __str__(self) -> str:
        activation = "" if self.activation == "Identity" else f", {self.activation}"
        residual = "" if self.residual is None else ", residual"
        return f"Dense({self.weight.shape[0]} -> {self.weight.shape[1]}{activation}{residual})"


@dataclass(frozen=True)
class LayerNorm(Module):
    """Normalises each vector to mean 0 and variance 1, then scales and shifts its coordinates."""

    weight: Float32Array  # scale, float32 [d]
    bias: Float32Array  # shift, float32 [d]
    epsilon: float = 1e-5  # number added to the variance

    def __call__(self, vectors: Float64Array) -> Float64Array:
        centred = vectors - vectors.mean(axis=1, keepdims=True)
        variance = np.square(centred).mean(axis=1, keepdims=True)
        return np.asarray(centred / np.sqrt(variance + self.epsilon) * self.weight + self.bias)


@dataclass(frozen=True)
class Normalize(Module):
    """Divides each vector by its L2 norm."""

    def __call__(self, vectors: Float64Array) -> Float64Array:
        return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), LEAST_NORM))


@dataclass(frozen=True)
class Truncate(Module):
    """Keeps the leading coordinates of each vector."""

    dimension: int  # number of coordinates to keep

    def __call__(self, vectors: Float64Array) -> Float64Array:
        return vectors[:, : self.dimension]

    def width(self, before: int) -> int:
        return min(before, self.dimension)

    def __str__(self) -> str:
        return f"Truncate({self.dimension})"


@dataclass(frozen=True)
class Composition:
    """How hidden states become the vector that is whitened: pooling, average of the layers, modules.

    WhiteningBERT (Huang et al., EMNLP Findings 2021), section 3; the modules are those of sentence-transformers.
    """

    layers: tuple[int, ...]  # indices into the hidden states, ascending
    pooling: Pooling = "mean"  # pooling over the tokens
    layer_weights: tuple[float, ...] | None = None  # weights of the layers in their average; None for equal ones
    include_prompt: bool = True  # whether the tokens of a prompt take part in the pooling
    modules: Sequence[Module] = ()  # modules after the average of the layers, in order

    def pooled_width(self, hidden_size: int) -> int:
        """Return the number of coordinates after the pooling."""
        return hidden_size * len(pooling_modes(self.pooling))

    def width(self, hidden_size: int) -> int:
        """Return the number of coordinates of the vector that is whitened."""
        width = self.pooled_width(hidden_size)
        for module in self.modules:
            width = module.width(width)
        return width

    @property
    def shares(self) -> tuple[float, ...]:
        """Return the share of each layer in the average; they sum to 1."""
        weights = self.layer_weights or (1.0,) * len(self.layers)
        return tuple(weight / sum(weights) for weight in weights)

    def __call__(self, pooled: Float64Array) -> Float64Array:
        """Average the layers and apply the modules, float64 [layers, n, d] to [n, k]."""
        vectors = np.tensordot(self.shares, pooled, 1)
        for module in self.modules:
            vectors = module(vectors)
        return np.asarray(vectors)


class Reference:
    """Computes sentence vectors before whitening, independently of the graph."""

    name: str  # name and precision of the program that computes, for the manifest

    def pooled(self, input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64]) -> Float64Array:
        """Return pooled hidden states of a padded batch, [layers, batch_size, d]; see `Composition` for what follows.

        The mask is 1 for a token, 2 for a token that is left out of the pooling, and 0 for padding.
        """
        raise NotImplementedError

    def side_by_side(self) -> AbstractContextManager[int]:
        """Yield how many threads may call `pooled` at a time while the context is open; the results do not change."""
        return nullcontext(1)

    def close(self) -> None:
        """Free what only the reference needs; nothing is computed afterwards."""


def text_alone(ids: Sequence[int], left_out: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the token ids and the mask of one text, int64 [1, n] each, as `Reference.pooled` takes them."""
    row = np.asarray([ids], np.int64)
    mask = np.ones_like(row)
    mask[:, :left_out] = 2
    return row, mask


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
