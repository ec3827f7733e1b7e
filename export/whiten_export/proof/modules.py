"""Define the modules of sentence-transformers that follow the pooling, in numpy and float64."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import erf

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True)
class Dense:
    """Applies an affine map and an activation function: y = f(x W + b) + x R."""

    weight: Float32Array  # W, float32 [d, k]
    bias: Float32Array | None  # b, float32 [k]; None for none
    activation: str  # name of f, one of `ACTIVATIONS`
    residual: Float32Array | None = None  # R, float32 [d, k]; None for no residual connection

    def __call__(self, vectors: Float64Array) -> Float64Array:
        """Apply it to float64 [n, d], giving [n, k]."""
        linear = vectors @ self.weight.astype(np.float64)
        if self.bias is not None:
            linear = linear + self.bias.astype(np.float64)
        result = ACTIVATIONS[self.activation](linear)
        return result if self.residual is None else result + vectors @ self.residual.astype(np.float64)

    def width(self, _: int) -> int:
        """Return the number of coordinates that it gives."""
        return int(self.weight.shape[1])

    def __str__(self) -> str:
        activation = "" if self.activation == "Identity" else f", {self.activation}"
        residual = "" if self.residual is None else ", residual"
        return f"Dense({self.weight.shape[0]} -> {self.weight.shape[1]}{activation}{residual})"


@dataclass(frozen=True)
class LayerNorm:
    """Normalises each vector to mean 0 and variance 1, then scales and shifts its coordinates."""

    weight: Float32Array  # scale, float32 [d]
    bias: Float32Array  # shift, float32 [d]
    epsilon: float = 1e-5  # number added to the variance

    def __call__(self, vectors: Float64Array) -> Float64Array:
        """Apply it to float64 [n, d]."""
        centred = vectors - vectors.mean(axis=1, keepdims=True)
        variance = np.square(centred).mean(axis=1, keepdims=True)
        return np.asarray(centred / np.sqrt(variance + self.epsilon) * self.weight + self.bias)

    def width(self, before: int) -> int:
        """Return the number of coordinates that it gives."""
        return before

    def __str__(self) -> str:
        return "LayerNorm"


@dataclass(frozen=True)
class Normalize:
    """Divides each vector by its L2 norm."""

    def __call__(self, vectors: Float64Array) -> Float64Array:
        """Apply it to float64 [n, d]."""
        return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), LEAST_NORM))

    def width(self, before: int) -> int:
        """Return the number of coordinates that it gives."""
        return before

    def __str__(self) -> str:
        return "Normalize"


@dataclass(frozen=True)
class Truncate:
    """Keeps the leading coordinates of each vector."""

    dimension: int  # number of coordinates to keep

    def __call__(self, vectors: Float64Array) -> Float64Array:
        """Apply it to float64 [n, d]."""
        return vectors[:, : self.dimension]

    def width(self, before: int) -> int:
        """Return the number of coordinates that it gives."""
        return min(before, self.dimension)

    def __str__(self) -> str:
        return f"Truncate({self.dimension})"


Module = Dense | LayerNorm | Normalize | Truncate
"""A module between the pooling and the whitening."""
