"""Mark attention while it is traced: transformers hands queries, keys, values and what they may see to one node each.

transformers calls a registered function for each attention, and another one for each mask. Here the first adds one node
of the domain `MARK` to a graph, and the second keeps the padding, and what else is hidden, as two numbers. A network
that passes anything else, such as a bias, or whose attention is its own code, keeps its attention as it is.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from whiten_export.graph.attention import ALL, DOMAIN, KIND

_NAME = "whiten"
"""Name of the implementation of attention that marks it."""

_IGNORED = frozenset(
    (
        *("cache_position", "config", "deterministic", "dropout", "is_causal", "layer_idx", "output_attentions"),
        *("output_hidden_states", "past_key_values", "position_ids", "return_dict", "sliding_window", "token_type_ids"),
        "use_cache",
    )
)
"""Arguments of attention that do not change it in a network that is evaluated and has a mask."""

_FARTHEST = 1 << 16
"""Number of tokens of the text on which a mask is asked which tokens a token sees."""


class _UnknownAttentionError(Exception):
    """Says that a network passes something to its attention, or asks something of a mask, that is not marked."""


def _attend(
    module: nn.Module,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """Add the node of an attention to a graph, or compute what it stands for."""
    window = getattr(attention_mask, "window", None)
    if window is None or any(name not in _IGNORED for name, value in arguments.items() if value is not None):
        raise _UnknownAttentionError
    heads, groups, width = queries.shape[1], keys.shape[1], values.shape[3]
    scale = queries.shape[3] ** -0.5 if scaling is None else float(scaling)
    if not torch.onnx.is_in_onnx_export():
        keys, values = (value.repeat_interleave(heads // groups, 1) for value in (keys, values))
        positions = torch.arange(queries.shape[2])
        near = _within(positions[:, None], positions, window) & attention_mask[:, None, None]  # type: ignore[index]
        scores = (scale * queries @ keys.mT).masked_fill(~near, torch.finfo(torch.float32).min)
        return (scores.softmax(-1) @ values).transpose(1, 2), None
    context = torch.onnx.ops.symbolic(
        f"{DOMAIN}::{KIND}",
        (queries, keys, values, attention_mask),
        {"scale": scale, "window": window, "sizes": (heads, groups, queries.shape[3], width)},
        dtype=queries.dtype,
        shape=(*queries.shape[:3], width),
        version=1,
    )
    return context.transpose(1, 2), None


def _mask(
    *, mask_function: Callable[..., Tensor], attention_mask: Tensor | None, q_offset: Any, kv_offset: Any, **_: Any
) -> Tensor:
    """Return the padding of texts, with the number of tokens before and after a token that it sees as its `window`."""
    if attention_mask is None or attention_mask.ndim != 2 or (q_offset, kv_offset) != (0, 0):
        raise _UnknownAttentionError
    mask: Any = attention_mask.clone()
    with ThreadPoolExecutor(1) as thread:  # in which nothing is traced
        mask.window = thread.submit(_window, mask_function).result()
    padding: Tensor = mask
    return padding


def _window(mask_function: Callable[..., Tensor]) -> list[int]:
    """Return the numbers of tokens before and after a token that it sees; `ALL` where all are seen.

    A mask is a function of two positions. It is asked for some queries and all keys of a long text.
    """
    keys = torch.arange(_FARTHEST)
    powers = 2 ** torch.arange(1, 17)
    queries = torch.cat([torch.arange(5), powers - 1, powers[:-1] + 1, 3 * powers[4:-1] // 2])[:, None]
    zero = torch.zeros((), dtype=torch.int64)
    try:
        seen = mask_function(zero, zero, queries, keys).expand(len(queries), _FARTHEST)
        distances = (queries - keys)[seen]
        left, right = int(distances.max()), int(-distances.min())
    except Exception as error:  # a function of texts, or one that takes no positions but one at a time
        raise _UnknownAttentionError from error
    window = [ALL if most == _FARTHEST - 1 else most for most in (left, right)]
    if not torch.equal(_within(queries, keys, window), seen):
        raise _UnknownAttentionError
    return window


def _within(queries: Tensor, keys: Tensor, window: Sequence[int]) -> Tensor:
    """Return whether queries at positions see keys at positions."""
    distance = queries - keys
    left, right = (_FARTHEST if most == ALL else most for most in window)
    return (distance <= left) & (distance >= -right)


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, _mask)


@contextmanager
def marked_attention(network: nn.Module, want: Sequence[Tensor], run: Callable[[], Sequence[Tensor]]) -> Iterator[None]:
    """Let a network mark its attentions within the block, if they are all understood.

    `run` computes its hidden states of a few texts; without the marks, these are `want`.
    """
    usual: Any = network
    before = getattr(usual.config, "_attn_implementation", None)
    try:
        with suppress(AttributeError, ImportError, ValueError):  # of a network without the choice, or of its own code
            usual.set_attn_implementation(_NAME)
        try:
            pairs = zip(run(), want, strict=True)
            understood = all(torch.allclose(state, other, rtol=1e-4, atol=1e-5) for state, other in pairs)
        except Exception:  # _UnknownAttentionError, or of code that does something else with the mask
            understood = False
        if not understood and before is not None:
            usual.set_attn_implementation(before)
        yield
    finally:
        if before is not None:
            with suppress(AttributeError, ImportError, ValueError):
                usual.set_attn_implementation(before)
