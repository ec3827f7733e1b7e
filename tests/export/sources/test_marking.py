"""Test what transformers' masks and attentions are marked as, and that networks with others keep their own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers
from transformers import masking_utils as masks

from support.graphs import default_session
from whiten_export.graph.attention import ALL, attentions
from whiten_export.sources import marking
from whiten_export.sources.pytorch import trace

SIZES = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 32,
    "pad_token_id": 0,
}


def always(*positions: Any) -> torch.Tensor:
    """See everything, as Gemma's bidirectional mask does: a number for all positions."""
    return torch.tensor(True)


@pytest.mark.parametrize(
    ("mask", "window"),
    [
        (masks.causal_mask_function, [ALL, 0]),
        (masks.bidirectional_mask_function, [ALL, ALL]),
        (masks.sliding_window_causal_mask_function(1), [0, 0]),
        (masks.sliding_window_causal_mask_function(4096), [4095, 0]),
        (masks.sliding_window_bidirectional_mask_function(64), [64, 64]),
        (masks.or_masks(masks.causal_mask_function, always), [ALL, ALL]),
    ],
)
def test_masks_of_positions_are_windows(mask: Callable[..., torch.Tensor], window: list[int]) -> None:
    assert marking._window(mask) == window


@pytest.mark.parametrize(
    "mask",
    [
        masks.chunked_causal_mask_function(8192, torch.zeros(1, dtype=torch.int64)),
        masks.and_masks(masks.causal_mask_function, masks.packed_sequence_mask_function(torch.zeros(1, 5))),
        masks.or_masks(masks.causal_mask_function, masks.blockwise_overlay(torch.zeros(1, 5))),
        lambda batch, head, query, key: key % 2 == query % 2,
        lambda batch, head, query, key: key > query + 10**6,
    ],
    ids=["chunks", "texts packed together", "blocks of tokens", "every second token", "nothing"],
)
def test_other_masks_are_unknown(mask: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(marking._UnknownAttentionError):
        marking._window(mask)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "marks", "settings"),
    [
        ("gemma2", 0, {"sliding_window": 3}),  # bends its scores
        ("gemma2", 2, {"sliding_window": 3, "attn_logit_softcapping": None}),
        ("qwen2", 2, {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    ],
)
def test_a_network_is_marked_whole_or_not_at_all(kind: str, marks: int, settings: dict[str, Any]) -> None:
    config = transformers.AutoConfig.for_model(kind, **(SIZES | settings))
    torch.manual_seed(0)
    network = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    model = trace(network, (2,))
    assert len(attentions(model)) == marks
    assert network.config._attn_implementation == "eager"
    if marks:
        return
    ids = np.random.default_rng(0).integers(5, 60, (2, 9))
    mask = (np.arange(9) < np.array([[9], [4]])).astype(np.int64)
    feed = {"input_ids": ids, "attention_mask": mask}
    (states,) = default_session(ir.to_proto(model).SerializeToString()).run(None, feed)
    with torch.no_grad():
        want = network(**{name: torch.from_numpy(array) for name, array in feed.items()}).last_hidden_state.numpy()
    np.testing.assert_allclose(states[mask == 1], want[mask == 1], atol=1e-5)
