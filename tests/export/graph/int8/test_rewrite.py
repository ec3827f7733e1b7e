"""Test int8 graphs against numpy, on small graphs."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.graphs import INNER, WIDTH, count, default_session, graph_of, linear_graph, run
from whiten_export.graph.build import activations
from whiten_export.graph.int8 import Quantized, quantize_int8
from whiten_export.graph.int8_rounding import quantize_weights
from whiten_export.graph.int8_scales import FUNCTIONS, SYMMETRIC, Scale

TOKEN = Scale(SYMMETRIC)
CONSTANT = Scale(121, constant=0.25)


def int8_graph(scale: Scale = TOKEN) -> tuple[ir.Model, dict[str, np.ndarray]]:
    model, weights = linear_graph(np.random.default_rng(0))
    assert [value.name for value in activations(model)] == ["x"]
    assert quantize_int8(model, {"x": Quantized(scale)}) == 2
    return model, weights


@pytest.mark.parametrize(
    "scale", [TOKEN, Scale(SYMMETRIC, factors=np.geomspace(0.5, 2, WIDTH, dtype=np.float32)), CONSTANT]
)
def test_int8_is_close_and_quantizes_a_shared_input_once(scale: Scale) -> None:
    model, weights = int8_graph(scale)
    assert (count(model, "MatMulInteger"), count(model, "QuantizeLinear"), count(model, "MatMul")) == (2, 1, 1)
    x = np.random.default_rng(1).uniform(-25, 25, size=(2, 3, WIDTH)).astype(np.float32)
    want = (x @ weights["a"] + x @ weights["b"]) @ weights["whitening.weight"]
    got = run(model, x)
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < 0.02
    assert not np.array_equal(got, want)
    assert [value.name for value in model.graph.outputs] == ["y"]
    assert "whitening.weight" in model.graph.initializers
    assert not {"a", "b"} & set(model.graph.initializers)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6), st.sampled_from([TOKEN, CONSTANT]))
def test_row_does_not_depend_on_other_rows(seed: int, factor: float, scale: Scale) -> None:
    model, _ = int8_graph(scale)
    rows = np.random.default_rng(seed).normal(size=(4, 5, WIDTH)).astype(np.float32)
    rows[1:] *= factor
    alone = run(model, rows[:1, :2])
    np.testing.assert_allclose(run(model, rows)[:1, :2], alone, rtol=1e-5, atol=1e-5)


def test_rows_of_zeros_stay_zeros() -> None:
    model, _ = int8_graph()
    np.testing.assert_array_equal(run(model, np.zeros((1, 2, WIDTH), np.float32)), 0)


def test_shared_weights_are_smoothed_for_each_product() -> None:
    text = f"""(float[n, {WIDTH}] x) => (float[n, {INNER}] y)
    {{ u = Mul(x, turn)
       p = MatMul(x, w)
       q = MatMul(u, w)
       y = Add(p, q) }}"""
    rising = np.linspace(1, 20, WIDTH).astype(np.float32)
    weight = np.random.default_rng(0).normal(size=(WIDTH, INNER)).astype(np.float32)
    model = graph_of(text, {"w": weight, "turn": rising[::-1] / rising})
    x = np.random.default_rng(1).normal(size=(50, WIDTH)).astype(np.float32) * rising
    scales = {"x": rising, "u": rising[::-1].copy()}
    quantize_int8(model, {name: Quantized(Scale(SYMMETRIC, factors=found)) for name, found in scales.items()})
    want = x @ weight + (x * (rising[::-1] / rising)) @ weight
    assert np.linalg.norm(run(model, x) - want) / np.linalg.norm(want) < 0.05


@pytest.mark.parametrize("scale", [TOKEN, CONSTANT])
def test_onnxruntime_fuses_scales_into_the_product(scale: Scale, tmp_path: Path) -> None:
    """Otherwise each product would be written, cast and multiplied in separate passes."""
    model, _ = int8_graph(scale)
    default_session(ir.to_proto(model).SerializeToString(), tmp_path / "optimized.onnx")
    optimized = ir.load(tmp_path / "optimized.onnx")
    assert (count(optimized, "MatMulIntegerToFloat"), count(optimized, "MatMulInteger")) == (2, 0)


GELU = Scale(FUNCTIONS["Gelu"].zero_point, least=FUNCTIONS["Gelu"].least)


def gelu_graph(weight: np.ndarray) -> ir.Model:
    text = f"(float[n, {WIDTH}] x) => (float[n, {INNER}] y) {{ z = Gelu(x) p = MatMul(z, w) y = Neg(p) }}"
    return graph_of(text, {"w": weight})


def test_gelu_outputs_are_quantized_asymmetrically() -> None:
    weight = np.random.default_rng(0).normal(size=(WIDTH, INNER)).astype(np.float32)
    x = np.random.default_rng(1).normal(size=(200, WIDTH)).astype(np.float32) * 3
    want = run(gelu_graph(weight), x)
    model = gelu_graph(weight)
    assert quantize_int8(model, {"z": Quantized(GELU)}) == 1
    error = np.linalg.norm(run(model, x) - want) / np.linalg.norm(want)
    symmetric = np.maximum(x, 0)  # close enough to GELU to estimate its rounding error
    step = symmetric.max(axis=1, keepdims=True) / 127
    rounding = (np.rint(symmetric / step) * step - symmetric) @ weight
    columns, scale = quantize_weights(weight)
    of_weights = symmetric @ (columns * scale - weight)
    assert error < (0.75 * np.linalg.norm(rounding) + np.linalg.norm(of_weights)) / np.linalg.norm(want)


def test_the_vocabulary_is_quantized_and_positions_are_not() -> None:
    """Rows of positions are added to every text's, so that their rounding would lead all vectors astray together."""
    text = f"""(int64[n, s] input_ids, int64[n, s] places) => (float[n, s, {WIDTH}] y)
    {{ words = Gather(vocabulary, input_ids)
       positions = Gather(table, places)
       y = Add(words, positions) }}"""
    random = np.random.default_rng(0)
    tables = {name: random.normal(size=(300, WIDTH)).astype(np.float32) for name in ("vocabulary", "table")}
    model = graph_of(text, tables)
    assert quantize_int8(model, {}) == 1
    assert "table" in model.graph.initializers
    assert "vocabulary" not in model.graph.initializers
