"""Define how hidden states become the vector that is whitened."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from whiten_export.proof.modules import Float64Array, Module
from whiten_runtime.bundle.manifest import Pooling, pooling_modes


@dataclass(frozen=True)
class Composition:
    """Describes how hidden states become the vector that is whitened: pooling, average of the layers, modules.

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
