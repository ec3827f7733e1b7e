"""Load the engines that are compared on a GPU, and find the batch size with which each is fastest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel

from benchmarks.timing import seconds
from whiten import Encoder
from whiten_runtime.inference.batching import pad_batch
from whiten_runtime.inference.tokenizer import Tokenizer

Vectors = NDArray[np.float32]

_SIZES = {"tokens": (4096, 16384, 65536), "texts": (32, 128, 512, 2048)}


class Rival(NamedTuple):
    """Hold the functions of a loaded engine.

    Attributes:
        many: vectors of many texts, at a size of batches.
        one: the vector of one text.
        sizes: those that are tried; the fastest for each workload is taken.
    """

    many: Callable[[list[str], int], Vectors]
    one: Callable[[str], Vectors]
    sizes: tuple[int, ...]


def whiten(bundle: Path, device: str, cuda_graphs: bool = False) -> Rival:
    """Open a bundle of whiten, which chooses its batches itself."""
    encoder = Encoder(bundle, device=device, cuda_graphs=cuda_graphs)
    return Rival(lambda texts, size: encoder.encode(texts), encoder.encode, (0,))


class Torch:
    """Run PyTorch with scaled-dot-product attention: texts sorted by length, batches of like length, one copy at last.

    Args:
        checkpoint: a directory written by save_pretrained.
        tokenizer: the bundle's, so that all have the same tokens.
        device: where.
        dtype: of weights and activations.
        compiled: with torch.compile, for any shape.
    """

    def __init__(
        self, checkpoint: Path, tokenizer: Tokenizer, device: str, dtype: torch.dtype, compiled: bool = False
    ) -> None:
        network = AutoModel.from_pretrained(checkpoint, dtype=dtype, attn_implementation="sdpa").to(device).eval()
        self._network: Any = torch.compile(network, dynamic=True) if compiled else network
        self._tokenizer, self._device = tokenizer, device

    def rival(self) -> Rival:
        """Return its functions, as those of the other engines."""
        return Rival(self.many, lambda text: self.many([text], 1)[0], _SIZES["tokens"])

    @torch.inference_mode()
    def many(self, texts: list[str], budget: int) -> Vectors:
        """Return mean-pooled last hidden states, float32 [n, d]."""
        rows = [self._tokenizer.cut(row) for row in self._tokenizer.tokenize(texts)]
        if len(rows) == 1:
            ids = torch.tensor(rows, device=self._device)
            return self._pooled(ids, torch.ones_like(ids)).cpu().numpy()
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        parts, start = [], 0
        while start < len(order):
            width = len(rows[order[start]])
            group = order[start : start + max(1, budget // width)]
            feed = pad_batch([rows[index] for index in group], 0)
            ids, mask = (torch.from_numpy(feed[name]) for name in ("input_ids", "attention_mask"))
            parts.append(self._pooled(self._on(ids), self._on(mask)))
            start += len(group)
        vectors = torch.empty(len(rows), parts[0].shape[1])
        vectors[order] = torch.cat(parts).cpu()
        return vectors.numpy()

    def _on(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory().to(self._device, non_blocking=True) if self._device == "cuda" else tensor

    def _pooled(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self._network(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask[..., None].float()
        vectors: torch.Tensor = (states.float() * weights).sum(1) / weights.sum(1)
        return vectors


def sentence_transformers(checkpoint: Path, device: str, dtype: torch.dtype, longest: int) -> Rival:
    """Load sentence-transformers in half precision."""
    from sentence_transformers import SentenceTransformer, models

    transformer = models.Transformer(str(checkpoint), max_seq_length=longest)
    width = json.loads((checkpoint / "config.json").read_text())["hidden_size"]
    pooling = models.Pooling(width, pooling_mode="mean")
    model = SentenceTransformer(modules=[transformer, pooling], device=device).to(dtype)
    return Rival(
        lambda texts, size: model.encode(texts, batch_size=size),
        model.encode,
        _SIZES["texts"],
    )


def rate(many: Callable[[list[str], int], Vectors], texts: list[str], size: int) -> float:
    """Return texts per second of one call."""
    return len(texts) / seconds(lambda: many(texts, size))


def best_size(rival: Rival, texts: list[str]) -> int:
    """Return the size of batches with which a workload is fastest in a second run, as the first meets new shapes."""
    rates = {}
    for size in rival.sizes:
        try:
            rival.many(texts, size)
            rates[size] = rate(rival.many, texts, size)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
    if not rates:
        raise SystemExit(f"batches of {rival.sizes[0]} already need more memory than this GPU has")
    return max(rates, key=lambda size: rates[size])
