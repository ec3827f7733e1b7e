"""Test that marked attentions, lowered, give PyTorch's hidden states, and that long texts hold no tokens x tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers

from support.families import MAX_LENGTH, WIDENED, WIDENED_LAYERS
from support.graphs import default_session, traced_layers
from whiten_export.graph import attention as lowering
from whiten_export.graph.attention import CONTRIB, Window, attentions, lower_attention

ALL, CAUSAL = Window(None, None), Window(None, 0)
NEAR = Window(8, 8)
WINDOWS = {
    **dict.fromkeys(("bert", "albert", "distilbert", "electra", "nomic_bert", "gte", "roberta"), (ALL,)),
    **dict.fromkeys(("modernbert", "gemma3_text"), (ALL, NEAR)),
    **dict.fromkeys(("llama", "gpt2", "qwen3"), (CAUSAL,)),
    "mistral": (Window(15, 0),),
}
QUICK = ("bert", "modernbert", "llama", "t5")  # which tests/parity/test_families.py traces too


def quick_first(families: Any) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in families]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "SHORT", 20)
    monkeypatch.setattr(lowering, "BLOCK", 8)
    monkeypatch.setattr(lowering, "ALONE_TOKENS", 30)
    monkeypatch.setattr(lowering, "FUSED_BLOCK", 16)


@pytest.fixture
def trace(checkpoint: Callable[..., Path]) -> Callable[[str], ir.Model]:
    """Return a function that traces the last layer of the small network of an architecture."""

    def last_layer(family: str) -> ir.Model:
        return traced_layers(checkpoint, family, (WIDENED_LAYERS,)).model

    return last_layer


@pytest.fixture
def load(checkpoint: Callable[..., Path]) -> Callable[[str], Any]:
    """Return a function that loads the same network as users of PyTorch do."""

    def eager(family: str) -> Any:
        network = transformers.AutoModel.from_pretrained(checkpoint(family, WIDENED))
        network = network.encoder if network.config.model_type == "t5" else network
        network.set_attn_implementation("eager")
        return network.eval()

    return eager


def worst(model: ir.Model, network: Any, lengths: tuple[int, ...]) -> float:
    """Return the largest difference of the states of real tokens from PyTorch's, divided by the largest state."""
    real = np.arange(max(lengths)) < np.array(lengths)[:, None]
    ids = np.random.default_rng(1).integers(5, 60, real.shape)
    feed = {"input_ids": ids, "attention_mask": real.astype(np.int64)}
    (states,) = default_session(ir.to_proto(model).SerializeToString()).run(None, feed)
    with torch.no_grad():
        want = network(**{name: torch.from_numpy(array) for name, array in feed.items()}).last_hidden_state.numpy()
    assert np.isfinite(states).all()
    return float(np.abs(states - want)[real].max() / np.abs(want).max())


def check_states(model: ir.Model, network: Any) -> None:
    for lengths in ((1,), (20, 5), (21, 3), (MAX_LENGTH,), (MAX_LENGTH, 1, 24), (40, 40)):
        assert worst(model, network, lengths) < 1e-5, lengths


@pytest.mark.parametrize("family", quick_first(WINDOWS))
@pytest.mark.usefixtures("small_blocks")
def test_states_of_short_and_long_texts_are_those_of_pytorch(
    family: str, trace: Callable[[str], ir.Model], load: Callable[[str], Any]
) -> None:
    network, model = load(family), trace(family)
    assert {attention.window for attention in attentions(model)} == set(WINDOWS[family])
    short = model.clone()
    assert lower_attention(model, MAX_LENGTH) == 0
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    fused = {node.op_type for node in nodes if node.domain == CONTRIB}
    assert fused == ({"MultiHeadAttention"} if ALL in WINDOWS[family] else set())
    scans = [node for node in nodes if node.op_type == "Scan"]
    for node in scans:  # onnxruntime before 1.24 wants the shape
        assert [len(value.shape or ()) for value in node.attributes["body"].as_graph().outputs] == [4]
    check_states(model, network)
    lower_attention(short, 20)
    assert not any(node.op_type == "If" or node.domain == CONTRIB for node in short.graph)
    check_states(short, network)


@pytest.mark.parametrize("family", quick_first(["t5", "deberta-v2", "layoutlm", "mpnet", "xlm"]))
@pytest.mark.usefixtures("small_blocks")
def test_attentions_of_other_kinds_stay_as_they_are(
    family: str, trace: Callable[[str], ir.Model], load: Callable[[str], Any]
) -> None:
    """Networks with biases of positions, or with code of their own."""
    model = trace(family)
    assert not attentions(model)
    assert lower_attention(model, MAX_LENGTH) == WIDENED_LAYERS
    assert worst(model, load(family), (MAX_LENGTH, 5)) < 1e-5
