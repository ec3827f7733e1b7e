"""Test that the last layer is computed for pooled tokens alone, with the same vectors."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from support.families import LAYERS, MAX_LENGTH, WIDENED, WIDENED_LAYERS, WIDTH
from support.graphs import default_session, traced_layers
from whiten import Encoder
from whiten_export import export as pipeline
from whiten_export.graph.attention import blocks
from whiten_export.graph.attention.find import size_of
from whiten_export.graph.fold_positions import fold_positions
from whiten_export.graph.head import pool_graph, set_head
from whiten_export.graph.pooled_rows.compute import compute_pooled_rows
from whiten_export.proof.reference import Composition
from whiten_export.recipe import Recipe

NETWORKS = [
    ("bert", "cls", 6),
    ("albert", "last", 6),
    pytest.param("mpnet", "cls", 6, marks=pytest.mark.slow),
    ("t5", "last", 6),
    ("modernbert", "cls", 5),
    ("llama", "last", 7),
    pytest.param("gpt2", "last", 5, marks=pytest.mark.slow),
    pytest.param("mistral", "last", 7, marks=pytest.mark.slow),
    pytest.param("qwen3", "last", 7, marks=pytest.mark.slow),
    pytest.param("gemma3_text", "cls", 7, marks=pytest.mark.slow),
]
"""Architectures, poolings, and the products of the last layer but those of keys and values. Where one product gives
queries, keys and values, it is left out."""


@pytest.fixture
def traced(checkpoint: Callable[..., Path]) -> Callable[[str, Sequence[int], str], ir.Model]:
    """Return a function that pools layers of the small network of an architecture."""

    def trace(family: str, layers: Sequence[int], pooling: str) -> ir.Model:
        states = traced_layers(checkpoint, family, layers)
        fold_positions(states.model, MAX_LENGTH)
        set_head(pool_graph(states, Composition(tuple(layers), pooling), WIDTH * WIDENED), None, True)
        return states.model

    return trace


def vectors(model: ir.Model, *batches: tuple[int, ...]) -> list[NDArray[np.float32]]:
    """Return the vectors of texts of these lengths, a batch each."""
    session, found = default_session(ir.to_proto(model).SerializeToString()), []
    for lengths in batches:
        real = np.arange(max(lengths)) < np.array(lengths)[:, None]
        feed = {"input_ids": np.random.default_rng(1).integers(5, 60, real.shape), "attention_mask": real.astype(int)}
        found.append(session.run(["sentence_embedding"], feed)[0])
    return found


BATCHES = ((1,), (7,), (MAX_LENGTH,), (MAX_LENGTH, 13), (41, 3, 40), (5, 0))


@pytest.mark.parametrize(("family", "pooling", "products"), NETWORKS)
def test_vectors_stay_the_same(
    family: str, pooling: str, products: int, traced: Callable[..., ir.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = traced(family, (WIDENED_LAYERS,), pooling)
    want = vectors(model, *BATCHES)
    monkeypatch.setattr(blocks, "SHORT", 20)
    monkeypatch.setattr(blocks, "BLOCK", 8)
    assert compute_pooled_rows(model, pooling, MAX_LENGTH) == products
    last = [node for node in model.graph if node.op_type == "Softmax"][-1]
    assert size_of(last.outputs[0], 2) == 1
    blocks.attend_in_blocks(model, MAX_LENGTH)
    for got, wanted in zip(vectors(model, *BATCHES), want, strict=True):
        assert np.abs(got - wanted).max() < 1e-6


@pytest.mark.parametrize(
    ("layers", "pooling"),
    [((2,), "mean"), ((2,), "cls+last"), ((1, 2), "cls"), ((0,), "cls"), ((2,), "cls_avg")],
)
def test_graphs_that_read_more_stay_as_they_are(
    layers: Sequence[int], pooling: str, traced: Callable[..., ir.Model]
) -> None:
    model = traced("bert", layers, pooling)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert compute_pooled_rows(model, pooling, MAX_LENGTH) == 0
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


TEXTS = ["a", "a man has his son on his back", "word " * 60, "two words", "a runner is resting in the shade"]


@pytest.mark.parametrize(
    ("family", "pooling", "precision"),
    [
        ("bert", "cls", "int8"),
        ("bert", "pooler", "fp32"),
        pytest.param("llama", "last", "int8", marks=pytest.mark.slow),
    ],
)
def test_bundles_of_every_precision_have_the_same_vectors(
    family: str,
    pooling: str,
    precision: Any,
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = Recipe(str(checkpoint(family)), layers=(LAYERS,), whitening=None, pooling=pooling, precision=precision)
    pipeline.export_bundle(recipe, tmp_path / "pooled")
    monkeypatch.setattr(pipeline, "compute_pooled_rows", lambda *_: 0)
    pipeline.export_bundle(recipe, tmp_path / "whole")
    with Encoder(tmp_path / "pooled") as pooled, Encoder(tmp_path / "whole") as whole:
        assert np.abs(pooled.encode(TEXTS) - whole.encode(TEXTS)).max() < 1e-6
    sizes = [(tmp_path / name / "onnx" / "model.onnx").stat().st_size for name in ("pooled", "whole")]
    assert sizes[0] != sizes[1]
