"""Test that what the export appends to a network is what the runtime concludes from the graph."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from whiten_export.graph.builder import GraphBuilder, HiddenStates, describe, describe_input
from whiten_export.graph.files import save_graph
from whiten_export.graph.head import OPSET, set_head
from whiten_export.graph.pooling import pool_graph
from whiten_export.proof.composition import Composition
from whiten_export.proof.modules import Dense
from whiten_runtime.bundle.graph_claims import GraphClaims, claims_of
from whiten_runtime.bundle.graph_facts import FLOAT, Tensor, read_facts
from whiten_runtime.bundle.manifest import VectorType, pooling_modes

ROWS, WIDTH = 300, 8
POOLINGS = ("mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len", "cls_avg", "pooler", "max+cls+pooler+mean")


def network(layers: tuple[int, ...]) -> HiddenStates:
    """Return a network that looks tokens up in one table for each layer."""
    ids, mask = (describe_input(ir.Value(name=name)) for name in ("input_ids", "attention_mask"))
    model = ir.Model(ir.Graph([ids, mask], [], nodes=[], opset_imports={"": OPSET}, name="whiten"), ir_version=10)
    builder = GraphBuilder(model, "network")
    states = []
    for layer in layers:
        table = builder.constant(f"table.{layer}", np.ones((ROWS + layer, WIDTH), np.float32))
        state = builder.op("Gather", table, ids)
        states.append(describe(state, f"hidden_states.{layer}", "batch_size", "sequence_length", WIDTH))
    builder.close(*states)
    pooler = Dense(np.eye(WIDTH, dtype=np.float32), None, "Tanh")
    return HiddenStates(model, tuple(states), pooler=pooler)


def claims(model: ir.Model, folder: Path) -> GraphClaims:
    save_graph(model, folder / "model.onnx")
    return claims_of(read_facts(folder / "model.onnx"))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("layers", [(0,), (2, 5), (0, 1, 12)])
def test_layers_and_pooling_are_concluded(
    tmp_path: Path, pooling: str, include_prompt: bool, layers: tuple[int, ...]
) -> None:
    model = pool_graph(network(layers), Composition(layers, pooling, include_prompt=include_prompt), WIDTH)
    set_head(model, None, False)
    found = claims(model, tmp_path)
    assert found.layers == layers
    assert found.modes == pooling_modes(pooling)
    assert found.prompts_apart is not include_prompt
    assert found.rows == ROWS + layers[0]
    assert (found.mapped, found.normalized, found.rounded, found.both) == (False, False, False, False)


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize(("normalize", "vectors"), [(False, "float32"), (True, "float32"), (False, "int8")])
@pytest.mark.parametrize("both", [True, False])
def test_the_end_is_concluded(tmp_path: Path, mapped: bool, normalize: bool, vectors: VectorType, both: bool) -> None:
    model = pool_graph(network((1,)), Composition((1,)), WIDTH)
    affine = (np.zeros(WIDTH), np.ones((WIDTH, 3))) if mapped else None
    set_head(model, affine, normalize, both and mapped, vectors)
    found = claims(model, tmp_path)
    assert (found.mapped, found.normalized, found.rounded) == (mapped, normalize, vectors == "int8")
    assert found.both == (both and mapped)
    facts = read_facts(tmp_path / "model.onnx")
    assert facts.opset == OPSET
    assert facts.outputs["sentence_embedding"] == Tensor(FLOAT, (None, 3 if mapped else WIDTH))
    assert facts.tensors.get("whitening.weight") == (Tensor(FLOAT, (WIDTH, 3)) if mapped else None)
