"""Compute what CUDA's normalisations do to a float16 network: `python -m benchmarks.half_statistics`.

By default onnxruntime's SkipLayerNormalization and EmbedLayerNormalization for CUDA sum values and squares in float16;
in strict mode SkipLayerNormalization sums in float32, as LayerNormalization does. Here all-MiniLM-L6-v2 runs in PyTorch
with every product rounded to float16 and either kind of statistics, and its mean-pooled layers are compared with
float32.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from benchmarks.machine import made_by
from benchmarks.workloads import minilm
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus

Normalise = Callable[[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], float], NDArray[np.float32]]

_HALF = np.float16
_LANES = 4
"""Number of neighbouring values that one thread of the kernel adds."""

TEXTS = 200


def in_half(
    values: NDArray[np.float32], scale: NDArray[np.float32], shift: NDArray[np.float32], epsilon: float
) -> NDArray[np.float32]:
    """Normalise with the mean of values and of squares, variance and epsilon in float16."""
    x = values.astype(_HALF)
    share = (_HALF(1 / x.shape[-1]) * x).astype(_HALF)
    mean, square = _sum(share), _sum((share * x).astype(_HALF))
    variance = (square - (mean * mean).astype(_HALF)).astype(_HALF) + _HALF(epsilon)  # 1e-12 is 0 in float16
    inverse = (1 / np.sqrt(variance.astype(np.float32))).astype(_HALF)
    scaled = ((scale.astype(_HALF) * (x - mean)).astype(_HALF) * inverse).astype(_HALF)
    return (scaled + shift.astype(_HALF)).astype(np.float32)


def in_single(
    values: NDArray[np.float32], scale: NDArray[np.float32], shift: NDArray[np.float32], epsilon: float
) -> NDArray[np.float32]:
    """Normalise float16 values with statistics in float32."""
    x = values.astype(_HALF).astype(np.float32)
    deviation = np.sqrt(x.var(-1, keepdims=True) + epsilon)
    result: NDArray[np.float32] = ((x - x.mean(-1, keepdims=True)) / deviation * scale + shift).astype(_HALF)
    return result.astype(np.float32)


def _sum(values: NDArray[np.float16]) -> NDArray[np.float16]:
    """Sum the last axis in float16: a few neighbours by one thread, then the threads' sums in pairs."""
    parts = values.reshape(*values.shape[:-1], -1, _LANES)
    total: NDArray[np.float16] = np.zeros(parts.shape[:-1], _HALF)
    for lane in range(_LANES):
        total = (total + parts[..., lane]).astype(_HALF)
    while total.shape[-1] > 1:
        if total.shape[-1] % 2:
            total = np.concatenate([total, np.zeros_like(total[..., :1])], -1)
        total = (total[..., ::2] + total[..., 1::2]).astype(_HALF)
    return total


@contextmanager
def halved(network: torch.nn.Module, first: Normalise, others: Normalise) -> Iterator[None]:
    """Round every product to float16, and replace the normalisation of the embeddings and that of the layers."""
    hooks = []
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear):
            hooks.append(module.register_forward_hook(lambda _, __, output: output.half().float()))
        if isinstance(module, torch.nn.LayerNorm):
            normalise = first if name.startswith("embeddings") else others
            hooks.append(module.register_forward_hook(_replacing(normalise)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _replacing(normalise: Normalise) -> Callable[..., torch.Tensor]:
    def hook(module: torch.nn.LayerNorm, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        scale, shift = module.weight.detach().numpy(), module.bias.detach().numpy()
        return torch.from_numpy(normalise(inputs[0].numpy(), scale, shift, module.eps))

    return hook


def pooled(network: torch.nn.Module, batch: dict[str, torch.Tensor]) -> NDArray[np.float32]:
    """Return mean-pooled hidden states, float32 [layers + 1, n, d]."""
    with torch.inference_mode():
        states = torch.stack(network(**batch, output_hidden_states=True).hidden_states)
    mask = batch["attention_mask"][..., None].float()
    vectors: NDArray[np.float32] = ((states * mask).sum(2) / mask.sum(1)).numpy()
    return vectors


def main() -> None:
    """Print the table."""
    folder = minilm()
    network = AutoModel.from_pretrained(folder).eval()
    texts = list(islice(Corpus((BUILTIN_CORPUS,), None, None), TEXTS))
    batch = AutoTokenizer.from_pretrained(folder)(
        texts, padding=True, truncation=True, max_length=128, return_tensors="pt"
    )
    wanted = pooled(network, batch)
    print(made_by("half_statistics", f"one run, {TEXTS} sentences") + "\n")
    print("| statistics of the embeddings | of the layers | layer | 1 - worst cosine | worst difference / norm |")
    print("|---" * 5 + "|")
    for first, others in ((in_single, in_single), (in_half, in_single), (in_half, in_half)):
        with halved(network, first, others):
            found = pooled(network, batch)
        for layer in (0, 1, len(wanted) - 1):
            a, b = (vectors[layer].astype(np.float64) for vectors in (wanted, found))
            norms = np.linalg.norm(a, axis=1)
            cosine = ((a * b).sum(1) / norms / np.linalg.norm(b, axis=1)).min()
            names = ["float16" if kind is in_half else "float32" for kind in (first, others)]
            worst = (np.linalg.norm(a - b, axis=1) / norms).max()
            print(f"| {' | '.join(names)} | {layer} | {1 - cosine:.1e} | {worst:.1e} |")


if __name__ == "__main__":
    main()
