"""Test that attention in blocks of queries gives PyTorch's hidden states, and that no tokens x tokens are held."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers
from numpy.typing import NDArray

from support.families import MAX_LENGTH, WIDENED, WIDENED_LAYERS
from support.graphs import default_session, graph_of, traced_layers
from whiten_export.graph.attention import blocks
from whiten_export.graph.attention.find import attentions, shared_heads
from whiten_export.graph.attention.masks import Visible, visible
from whiten_export.graph.fold_positions import fold_positions
from whiten_runtime.bundle import records

TRANSFORMERS_4 = transformers.__version__.startswith("4.")
SLOW = ("albert", "gemma3_text", "mistral", "nomic_bert", "qwen3")
IN_BLOCKS = [
    *("bert", "modernbert", "llama"),  # which tests/parity/test_families.py traces too
    *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
]
WITHOUT_BLOCKS = ["t5", *(pytest.param(name, marks=pytest.mark.slow) for name in ("deberta-v2", "mpnet", "xlm"))]
"""Networks with biases of positions, or that hide tokens otherwise: they stay as they are."""
# transformers 4 puts a number in place of hidden scores (Where), and adds no mask.
SINCE_5 = [pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "distilbert")]
(WITHOUT_BLOCKS if TRANSFORMERS_4 else IN_BLOCKS).extend(SINCE_5)
GEMMA_WINDOW = 4 if TRANSFORMERS_4 else 8
"""Tokens before and after one that a layer of the small Gemma sees. transformers 4 halves the window of a network
without causality twice: when the config is made, and when it is read again."""


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SHORT", 20)
    monkeypatch.setattr(blocks, "BLOCK", 8)


@pytest.fixture
def trace(checkpoint: Callable[..., Path]) -> Callable[[str], ir.Model]:
    """Return a function that traces the last layer of the small network of an architecture."""

    def last_layer(family: str) -> ir.Model:
        model = traced_layers(checkpoint, family, (WIDENED_LAYERS,)).model
        fold_positions(model, MAX_LENGTH)
        return model

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


@pytest.mark.parametrize("family", IN_BLOCKS)
@pytest.mark.usefixtures("small_blocks")
def test_states_of_short_and_long_texts_are_those_of_pytorch(
    family: str, trace: Callable[[str], ir.Model], load: Callable[[str], Any]
) -> None:
    network, model = load(family), trace(family)
    assert blocks.attend_in_blocks(model, MAX_LENGTH) == 0
    assert sum(node.op_type == "If" for node in model.graph) >= WIDENED_LAYERS
    scans = [node for node in ir.traversal.RecursiveGraphIterator(model.graph) if node.op_type == "Scan"]
    assert len(scans) >= WIDENED_LAYERS
    for node in scans:  # onnxruntime before 1.24 wants the shape
        assert [len(value.shape or ()) for value in node.attributes["body"].as_graph().outputs] == [4]
    for lengths in ((1,), (20, 5), (21, 3), (MAX_LENGTH,), (MAX_LENGTH, 1, 24), (40, 40)):
        assert worst(model, network, lengths) < 1e-5, lengths


@pytest.mark.parametrize("family", WITHOUT_BLOCKS)
@pytest.mark.usefixtures("small_blocks")
def test_attentions_that_are_not_understood_stay_as_they_are(
    family: str, trace: Callable[[str], ir.Model], load: Callable[[str], Any]
) -> None:
    model = trace(family)
    assert blocks.attend_in_blocks(model, MAX_LENGTH) == WIDENED_LAYERS
    assert worst(model, load(family), (MAX_LENGTH, 5)) < 1e-5


def test_texts_whose_memory_is_not_counted_are_computed_at_once(trace: Callable[[str], ir.Model]) -> None:
    model = trace("bert")
    blocks.attend_in_blocks(model, records.SHORT + 1)
    (long,) = (node for node in model.graph if node.op_type == "Greater")
    assert long.inputs[1].const_value.numpy() == records.SHORT


def test_graphs_of_short_texts_stay_as_they_are(trace: Callable[[str], ir.Model]) -> None:
    model = trace("bert")
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert blocks.attend_in_blocks(model, blocks.SHORT) == 0
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("family", "left", "right", "copies"),
    [
        ("bert", {None}, {None}, 1),
        pytest.param(
            *("gpt2", {None}, {0}, 1),
            marks=[pytest.mark.skipif(TRANSFORMERS_4, reason="there is no mask"), pytest.mark.slow],
        ),
        ("llama", {None}, {0}, 2),
        pytest.param(*("mistral", {15}, {0}, 2), marks=pytest.mark.slow),
        ("modernbert", {None, 8}, {None, 8}, 1),
        pytest.param(*("gemma3_text", {None, GEMMA_WINDOW}, {None, GEMMA_WINDOW}, 4), marks=pytest.mark.slow),
    ],
)
def test_masks_are_read_as_what_they_hide(
    family: str, left: set[int | None], right: set[int | None], copies: int, trace: Callable[[str], ir.Model]
) -> None:
    model = trace(family)
    seen = [visible(model, attention.masks[0], MAX_LENGTH) for attention in attentions(model)]
    assert {mask.left for mask in seen if mask} == left
    assert {mask.right for mask in seen if mask} == right
    assert all(mask is not None and mask.padding for mask in seen)
    assert {shared_heads(attention).copies for attention in attentions(model)} == {copies}


HEADS, WIDTH = 2, 4


def masked(mask: str) -> Visible | None:
    """Return what is read from the mask m of an attention."""
    text = f"""(int64[b, n] input_ids, int64[b, n] attention_mask) => (float[b, {HEADS}, n, {WIDTH}] y)
    {{ x = Gather(table, input_ids)
       r = Reshape(x, split)
       q = Transpose<perm=[0,2,1,3]>(r)
       t = Transpose<perm=[0,2,3,1]>(r)
       s = MatMul(q, t)
       f = Cast<to=1>(attention_mask)
       u = Unsqueeze(f, axes)
       inverse = Sub(one, u)
       {mask}
       a = Add(s, m)
       p = Softmax<axis=-1>(a)
       y = MatMul(p, q) }}"""
    arrays: dict[str, NDArray[Any]] = {"table": np.ones((60, HEADS * WIDTH), np.float32)}
    arrays |= {name: np.array(value, np.float32) for name, value in {"one": 1, "low": -1e9, "weak": -2}.items()}
    integers = {"split": [0, 0, HEADS, WIDTH], "axes": [1, 2], "last": [1], "zero": 0, "step": 1, "far": 3000}
    model = graph_of(text, arrays | {name: np.array(value, np.int64) for name, value in integers.items()})
    (attention,) = attentions(model)
    return visible(model, attention.masks[0], 4096)


@pytest.mark.parametrize(
    "mask",
    [
        "m = Mul(inverse, weak)",  # padding is seen a little
        "m = Mul(u, weak)",  # padding is seen more than tokens
        "m = Mul(u, one)",
        "g = Cast<to=1>(input_ids) g1 = Unsqueeze(g, axes) m = Mul(g1, low)",  # by the ids
        "g = CumSum(u, step) m = Mul(g, low)",  # by how many tokens there are
    ],
)
def test_what_is_no_mask_is_not_understood(mask: str) -> None:
    assert masked(mask) is None


def test_mask_of_padding_is_read() -> None:
    assert masked("m = Mul(inverse, low)") == Visible(None, None, hidden=-1e9)


def test_a_window_that_only_long_texts_show_is_read() -> None:
    seen = masked("""length = Shape<start=1, end=2>(attention_mask)
       count = Squeeze(length)
       places = Range(zero, count, step)
       rows = Unsqueeze(places, last)
       distance = Sub(rows, places)
       near = LessOrEqual(distance, far)
       padded = Mul(inverse, low)
       m = Where(near, padded, low)""")
    assert seen is not None
    assert (seen.left, seen.right, seen.padding) == (3000, None, True)
