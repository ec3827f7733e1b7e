"""Test the pooling and head that are appended to hidden states, against plain loops over tokens."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whiten_export.graph.builder import HiddenStates, describe, describe_input
from whiten_export.graph.head import pool_graph, set_head
from whiten_export.proof.reference import Head, pool, token_weights
from whiten_runtime.bundle.manifest import Pooling

WIDTH, KEPT = 6, 4
POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "last")


def lookup(tables: list[np.ndarray]) -> HiddenStates:
    """Return a network whose hidden state l is row `input_ids` of table l."""
    ids, mask = (describe_input(ir.Value(name=name)) for name in ("input_ids", "attention_mask"))
    initializers, nodes = [], []
    for layer, table in enumerate(tables):
        weights = ir.Value(name=f"table.{layer}", const_value=ir.tensor(table, name=f"table.{layer}"))
        weights.type, weights.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(table.shape)
        initializers.append(weights)
        nodes.append(ir.node("Gather", [weights, ids], name=f"gather_{layer}"))
        describe(nodes[-1].outputs[0], f"hidden_states.{layer}", "batch_size", "sequence_length", WIDTH)
    outputs = [node.outputs[0] for node in nodes]
    graph = ir.Graph([ids, mask], outputs, nodes=nodes, initializers=initializers, opset_imports={"": 20}, name="g")
    return HiddenStates(ir.Model(graph, ir_version=10), tuple(outputs))


def loops(states: list[np.ndarray], mask: np.ndarray, pooling: Pooling) -> np.ndarray:
    """Compute the definition, token by token."""
    rows = []
    for text in range(len(mask)):
        real = [position for position in range(mask.shape[1]) if mask[text, position]]
        chosen = {"mean": real, "cls": real[:1], "last": real[-1:]}[pooling]
        layers = []
        for state in states:
            vectors = [state[text, position].astype(np.float64) for position in chosen]
            layers.append(sum(vectors, np.zeros(WIDTH)) / max(len(vectors), 1))
        rows.append(sum(layers) / len(layers))
    return np.stack(rows)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    layers=st.integers(1, 3),
    pooling=st.sampled_from(POOLINGS),
    normalize=st.booleans(),
    whiten=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_graph_and_reference_equal_the_definition(
    lengths: list[int], layers: int, pooling: Pooling, normalize: bool, whiten: bool, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    tables = [generator.normal(size=(11, WIDTH)).astype(np.float32) for _ in range(layers)]
    mask = (np.arange(max(*lengths, 1)) < np.array(lengths)[:, None]).astype(np.int64)
    ids = generator.integers(0, 11, mask.shape)
    affine = (generator.normal(size=WIDTH), generator.normal(size=(WIDTH, KEPT))) if whiten else None
    want = loops([table[ids] for table in tables], mask, pooling)
    pooled = pool([table[ids] for table in tables], token_weights(mask, pooling))
    np.testing.assert_allclose(pooled.mean(axis=0), want, atol=1e-12)
    want = Head.of(affine, normalize)(want)
    graph = pool_graph(lookup(tables), pooling, WIDTH)
    set_head(graph, None, not normalize)  # the next call replaces this head
    set_head(graph, affine, normalize)
    session = onnxruntime.InferenceSession(ir.to_proto(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    got, tokens = session.run(None, {"input_ids": ids, "attention_mask": mask})
    np.testing.assert_allclose(got, want, atol=1e-5)
    np.testing.assert_array_equal(tokens, got[:, None])


def test_normalised_vectors_have_length_one() -> None:
    vectors = np.random.default_rng(0).normal(size=(5, WIDTH))
    np.testing.assert_allclose(np.linalg.norm(Head.of(None, True)(vectors), axis=1), 1)
    assert not Head.of(None, True)(np.zeros((1, WIDTH))).any()


@pytest.mark.parametrize("layers", [1, 3])
def test_unused_layers_are_removed(layers: int) -> None:
    hidden = lookup([np.ones((3, WIDTH), np.float32)] * layers)
    chosen = HiddenStates(hidden.model, hidden.states[:1])
    model = pool_graph(chosen, "mean", WIDTH)
    set_head(model, None, False)
    graph = model.graph
    assert [name for name in graph.initializers if name.startswith("table")] == ["table.0"]
    assert sum(node.op_type == "Gather" for node in graph) == 1
