"""Test the pooling and head that are appended to hidden states, against plain loops over tokens."""

import dataclasses
from typing import get_args

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.graphs import TOKENS, default_session, graph_of
from whiten_export.graph.build import HiddenStates
from whiten_export.graph.ends import pool_graph, set_head
from whiten_export.graph.poolings import pool
from whiten_export.proof.reference import ACTIVATIONS, Composition, Dense, Head, LayerNorm, Normalize, Truncate
from whiten_runtime.bundle.manifest import Pooling, PoolingMode

WIDTH, KEPT = 6, 4
POOLINGS = tuple(mode for mode in get_args(PoolingMode) if mode != "sif")
_RANDOM = np.random.default_rng(5)
POOLER = Dense(
    _RANDOM.normal(size=(WIDTH, WIDTH)).astype(np.float32), _RANDOM.normal(size=WIDTH).astype(np.float32), "Tanh"
)


def lookup(tables: list[np.ndarray]) -> HiddenStates:
    """Return a network whose hidden state l is row `input_ids` of table l."""
    layers = range(len(tables))
    states = ", ".join(f"float[batch_size, sequence_length, {WIDTH}] state{layer}" for layer in layers)
    body = " ".join(f"state{layer} = Gather(table_{layer}, input_ids)" for layer in layers)
    model = graph_of(f"({TOKENS}) => ({states}) {{ {body} }}", {f"table.{layer}": tables[layer] for layer in layers})
    return HiddenStates(model, tuple(model.graph.outputs))


def pooled_by_loops(vectors: list[np.ndarray], positions: list[int], mode: str) -> np.ndarray:
    """Pool the vectors of a text's tokens, at these positions from 1 on, by the definition."""
    if not vectors:
        return np.zeros(WIDTH)
    match mode:
        case "mean":
            return sum(vectors) / len(vectors)
        case "cls":
            return vectors[0]
        case "last":
            return vectors[-1]
        case "max":
            return np.array([max(vector[axis] for vector in vectors) for axis in range(WIDTH)])
        case "cls_avg":
            return (vectors[0] + sum(vectors) / len(vectors)) / 2
        case "mean_sqrt_len":
            return sum(vectors) / len(vectors) ** 0.5
        case "weightedmean":
            weighted = [position * vector for position, vector in zip(positions, vectors, strict=True)]
            return sum(weighted) / sum(positions)
        case "pooler":
            return np.tanh(vectors[0] @ POOLER.weight.astype(np.float64) + POOLER.bias)
    raise AssertionError(mode)


def loops(
    states: list[np.ndarray], mask: np.ndarray, pooling: Pooling, weights: tuple[float, ...] | None = None
) -> np.ndarray:
    """Compute the definition, token by token."""
    rows = []
    shares = weights or (1.0,) * len(states)
    for text in range(len(mask)):
        chosen = [position for position in range(mask.shape[1]) if mask[text, position] == 1]
        layers = []
        for state, share in zip(states, shares, strict=True):
            vectors = [state[text, position].astype(np.float64) for position in chosen]
            parts = [pooled_by_loops(vectors, [one + 1 for one in chosen], mode) for mode in pooling.split("+")]
            layers.append(share * np.concatenate(parts))
        rows.append(sum(layers) / sum(shares))
    return np.stack(rows)


def run_graph(graph: ir.Model, ids: np.ndarray, mask: np.ndarray) -> list[np.ndarray]:
    session = default_session(ir.to_proto(graph).SerializeToString())
    found: list[np.ndarray] = session.run(None, {"input_ids": ids, "attention_mask": mask})
    return found


def right_padded(lengths: list[int]) -> np.ndarray:
    return (np.arange(max(*lengths, 1)) < np.array(lengths)[:, None]).astype(np.int64)


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    layers=st.integers(1, 3),
    pooling=st.lists(st.sampled_from(POOLINGS), min_size=1, max_size=3, unique=True).map("+".join),
    weigh=st.booleans(),
    left_out=st.integers(0, 4),
    normalize=st.booleans(),
    whiten=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_graph_and_reference_equal_the_definition(
    lengths: list[int],
    layers: int,
    pooling: Pooling,
    weigh: bool,
    left_out: int,
    normalize: bool,
    whiten: bool,
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    tables = [generator.normal(size=(11, WIDTH)).astype(np.float32) for _ in range(layers)]
    mask = right_padded(lengths)
    mask[:, :left_out] *= 2
    ids = generator.integers(0, 11, mask.shape)
    width = WIDTH * len(pooling.split("+"))
    affine = (generator.normal(size=width), generator.normal(size=(width, KEPT))) if whiten else None
    weights = tuple(generator.uniform(0.1, 2, layers).tolist()) if weigh else None
    composition = Composition(tuple(range(layers)), pooling, weights, include_prompt=left_out == 0)
    want = loops([table[ids] for table in tables], mask, pooling, weights)
    if "pooler" not in pooling:
        pooled = pool([table[ids] for table in tables], mask, pooling)
        np.testing.assert_allclose(composition(pooled), want, atol=1e-12)
    raw, want = want, Head.of(affine, normalize)(want)
    hidden = dataclasses.replace(lookup(tables), pooler=POOLER)
    graph = pool_graph(hidden, composition, WIDTH)
    set_head(graph, None, not normalize)  # the next call replaces this head
    set_head(graph, affine, normalize)
    got, tokens, *unwhitened = run_graph(graph, ids, mask)
    np.testing.assert_allclose(got, want, atol=1e-5)
    np.testing.assert_array_equal(tokens, got[:, None])
    assert len(unwhitened) == (whiten or normalize)
    if unwhitened:
        np.testing.assert_allclose(unwhitened[0], raw, atol=1e-5)


def test_a_network_sees_the_tokens_of_a_prompt_that_is_left_out_of_the_pooling() -> None:
    """The mask of such tokens is 2, which a network would take for more than a token."""
    body = "cast = Cast<to=1>(attention_mask) state = Unsqueeze(cast, axis)"
    graph = graph_of(
        f"({TOKENS}) => (float[batch_size, sequence_length, 1] state) {{ {body} }}", {"axis": np.array([2])}
    )
    composition = Composition((0,), "mean_sqrt_len", include_prompt=False)
    model = pool_graph(HiddenStates(graph, tuple(graph.graph.outputs)), composition, 1)
    set_head(model, None, False)
    got, _ = run_graph(model, np.zeros((1, 6), np.int64), np.array([[2, 2, 1, 1, 1, 1]]))
    np.testing.assert_allclose(got, [[2.0]])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_modules_equal_those_of_torch(activation: str) -> None:
    import torch

    torch.manual_seed(0)
    linear, norm, other = torch.nn.Linear(WIDTH, 9), torch.nn.LayerNorm(9), torch.nn.Linear(9, 9, bias=False)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    weight, bias = linear.weight.detach().numpy().T, linear.bias.detach().numpy()
    modules = (
        Dense(np.ascontiguousarray(weight), bias, activation),
        LayerNorm(norm.weight.detach().numpy(), norm.bias.detach().numpy()),
        Normalize(),
        Dense(np.ascontiguousarray(other.weight.detach().numpy().T), None, activation, np.eye(9, dtype=np.float32)),
        Truncate(5),
    )
    table = np.random.default_rng(0).normal(size=(11, WIDTH)).astype(np.float32)
    with torch.no_grad():
        function = getattr(torch.nn, activation)()
        x = torch.nn.functional.normalize(norm(function(linear(torch.from_numpy(table)))), dim=1)
        want = (function(other(x)) + x)[:, :5].numpy()
    composition = Composition((0,), "cls", modules=modules)
    ids = np.arange(11)[:, None]
    np.testing.assert_allclose(composition(table[None].astype(np.float64)), want, atol=1e-6)
    graph = pool_graph(lookup([table]), composition, WIDTH)
    set_head(graph, None, False)
    exact = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 27)  # sigmoid is less so before
    np.testing.assert_allclose(run_graph(graph, ids, np.ones_like(ids))[0], want, atol=1e-6 if exact else 2e-6)
