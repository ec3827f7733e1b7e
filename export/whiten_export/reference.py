"""The definition of a sentence embedding, as one PyTorch module: the graph is exported from it and checked against it.

WhiteningBERT (Huang et al., EMNLP Findings 2021), section 3; BERT-whitening (Su et al., arXiv 2103.15316), section 3.
"""

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from whiten_runtime.manifest import Pooling


class Whitening(nn.Module):
    """y = (x - mean) W, with mean [d] and W [d, k]. Random until `set` is called: no exporter can fold it away."""

    mean: Tensor
    weight: Tensor

    def __init__(self, width: int, dimension: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("mean", torch.randn(width, generator=generator))
        self.register_buffer("weight", torch.randn(width, dimension, generator=generator))

    def set(self, mean: ArrayLike, weight: ArrayLike) -> None:
        """Replace the map, rounded to the precision of the module."""
        for buffer, value in ((self.mean, mean), (self.weight, weight)):
            buffer.copy_(torch.as_tensor(value))

    def forward(self, vectors: Tensor) -> Tensor:
        """Map [n, d] to [n, k]."""
        return (vectors - self.mean) @ self.weight


class SentenceEncoder(nn.Module):
    """Token ids to sentence vectors: pool the chosen layers, average them, whiten, normalise.

    Args:
        network: a transformers encoder that returns `hidden_states`.
        layers: indices into the hidden states.
        pooling: "mean" over the tokens that the mask keeps, or "cls" for the first token.
        whitening: the affine map at the end, or None.
        normalize: divide by the L2 norm.
    """

    def __init__(
        self,
        network: nn.Module,
        layers: tuple[int, ...],
        pooling: Pooling,
        whitening: Whitening | None,
        normalize: bool,
    ) -> None:
        super().__init__()
        self.network = network
        self.layers = layers
        self.pooling = pooling
        self.whitening = whitening
        self.normalize = normalize

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Embed a padded batch.

        Args:
            input_ids: int64 [batch_size, sequence_length].
            attention_mask: int64, 1 for a token and 0 for padding.

        Returns:
            The vectors [batch_size, k], and the same as [batch_size, 1, k] for programs that pool tokens themselves.
        """
        vectors = self.finish(self.unwhitened(input_ids, attention_mask))
        return vectors, vectors.unsqueeze(1)

    def unwhitened(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Mean over the chosen layers of their pooled hidden states, [batch_size, d]."""
        states = self.network(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True
        ).hidden_states
        pooled = [self._pool(states[layer], attention_mask) for layer in self.layers]
        return torch.stack(pooled).mean(dim=0) if len(pooled) > 1 else pooled[0]

    def finish(self, vectors: Tensor) -> Tensor:
        """Whiten and normalise, [batch_size, d] to [batch_size, k]."""
        if self.whitening is not None:
            vectors = self.whitening(vectors)
        if self.normalize:
            vectors = vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return vectors

    def _pool(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        if self.pooling == "cls":
            return states[:, 0]
        mask = attention_mask.to(states.dtype)
        weights = mask / mask.sum(dim=1, keepdim=True).clamp(min=1)
        return (weights.unsqueeze(1) @ states).squeeze(1)
