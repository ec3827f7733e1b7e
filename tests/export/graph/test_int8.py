"""Test int8 and float16 graphs against numpy, on small graphs."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whiten_export.graph.int8 import activations, halve_weights, quantize_columns, quantize_int8

WIDTH, INNER = 96, 64


def linear_graph(generator: np.random.Generator) -> tuple[ir.Model, dict[str, np.ndarray]]:
    """Return a graph and its weights: two MatMuls of one value, their sum, and a third with the whitening's name."""
    weights = {
        "a": generator.normal(size=(WIDTH, INNER)).astype(np.float32),
        "b": generator.normal(size=(WIDTH, INNER)).astype(np.float32),
        "whitening.weight": generator.normal(size=(INNER, INNER)).astype(np.float32),
    }
    text = f"""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[n, s, {WIDTH}] x) => (float[n, s, {INNER}] y)
    <float[{WIDTH}, {INNER}] a, float[{WIDTH}, {INNER}] b, float[{INNER}, {INNER}] whitening_weight>
    {{ p = MatMul(x, a)
       q = MatMul(x, b)
       z = Add(p, q)
       y = MatMul(z, whitening_weight) }}
    """
    model = ir.from_onnx_text(text)
    for value in list(model.graph.inputs)[1:]:
        model.graph.inputs.remove(value)
    for name, array in weights.items():
        value = next(v for node in model.graph for v in node.inputs if v and v.name == name.replace(".", "_"))
        value.const_value = ir.tensor(array, name=name)
        if value.name in model.graph.initializers:
            del model.graph.initializers[value.name]
        value.name = name
        model.graph.register_initializer(value)
    return model, weights


def run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return np.asarray(y)


def count(model: ir.Model, operator: str) -> int:
    return sum(node.op_type == operator for node in model.graph)


def int8_graph() -> tuple[ir.Model, dict[str, np.ndarray]]:
    model, weights = linear_graph(np.random.default_rng(0))
    assert [value.name for value in activations(model)] == ["x"]
    assert quantize_int8(model, {"x": np.linspace(1, 20, WIDTH)}) == 2
    return model, weights


def test_int8_is_close_and_quantizes_a_shared_input_once() -> None:
    model, weights = int8_graph()
    assert (count(model, "MatMulInteger"), count(model, "QuantizeLinear"), count(model, "MatMul")) == (2, 1, 1)
    x = np.random.default_rng(1).normal(size=(2, 3, WIDTH)).astype(np.float32) * np.linspace(
        1, 20, WIDTH, dtype=np.float32
    )
    want = (x @ weights["a"] + x @ weights["b"]) @ weights["whitening.weight"]
    got = run(model, x)
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < 0.02
    assert not np.array_equal(got, want)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6))
def test_row_does_not_depend_on_other_rows(seed: int, factor: float) -> None:
    model, _ = int8_graph()
    rows = np.random.default_rng(seed).normal(size=(4, 5, WIDTH)).astype(np.float32)
    rows[1:] *= factor
    alone = run(model, rows[:1, :2])
    np.testing.assert_allclose(run(model, rows)[:1, :2], alone, rtol=1e-5, atol=1e-5)


def test_rows_of_zeros_stay_zeros() -> None:
    model, _ = int8_graph()
    np.testing.assert_array_equal(run(model, np.zeros((1, 2, WIDTH), np.float32)), 0)


def test_smoothing_reduces_the_error_of_outlier_channels() -> None:
    """One channel is a hundred times larger, as in transformers; int8 with and without its magnitude."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(1, 50, WIDTH)).astype(np.float32)
    x[..., 7] *= 100
    errors = []
    for magnitude in (np.abs(x).max(axis=(0, 1)), np.ones(WIDTH)):
        model, weights = linear_graph(np.random.default_rng(0))
        want = (x @ weights["a"] + x @ weights["b"]) @ weights["whitening.weight"]
        quantize_int8(model, {"x": magnitude})
        errors.append(np.linalg.norm(run(model, x) - want) / np.linalg.norm(want))
    assert errors[0] < errors[1] / 3


def test_even_channels_are_not_smoothed() -> None:
    for magnitude, smoothed in ((np.ones(WIDTH), False), (np.linspace(0.1, 20, WIDTH) ** 2, True)):
        model, _ = linear_graph(np.random.default_rng(0))
        quantize_int8(model, {"x": magnitude})
        assert any("smoothing" in name for name in model.graph.initializers) == smoothed


def test_shared_weights_are_smoothed_for_each_product() -> None:
    text = f"""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[n, {WIDTH}] x) => (float[n, {INNER}] y)
    {{ u = Mul(x, turn)
       p = MatMul(x, w)
       q = MatMul(u, w)
       y = Add(p, q) }}
    """
    rising = np.linspace(1, 20, WIDTH).astype(np.float32)
    weight = np.random.default_rng(0).normal(size=(WIDTH, INNER)).astype(np.float32)
    model = ir.from_onnx_text(text)
    for name, array in (("w", weight), ("turn", rising[::-1] / rising)):
        value = next(v for node in model.graph for v in node.inputs if v and v.name == name)
        value.const_value = ir.tensor(array, name=name)
        model.graph.register_initializer(value)
    x = np.random.default_rng(1).normal(size=(50, WIDTH)).astype(np.float32) * rising
    quantize_int8(model, {"x": rising**2, "u": rising[::-1] ** 2})
    want = x @ weight + (x * (rising[::-1] / rising)) @ weight
    assert np.linalg.norm(run(model, x) - want) / np.linalg.norm(want) < 0.05


def test_onnxruntime_fuses_scales_into_the_product(tmp_path: Path) -> None:
    """Otherwise each product would be written, cast and multiplied in separate passes."""
    model, _ = int8_graph()
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    optimized = ir.load(tmp_path / "optimized.onnx")
    assert (count(optimized, "MatMulIntegerToFloat"), count(optimized, "MatMulInteger")) == (2, 0)


def gelu_graph(weight: np.ndarray) -> ir.Model:
    model = ir.from_onnx_text(f"""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[n, {WIDTH}] x) => (float[n, {INNER}] y)
    {{ z = Gelu(x)
       p = MatMul(z, w)
       y = Neg(p) }}
    """)
    value = next(v for node in model.graph for v in node.inputs if v and v.name == "w")
    value.const_value = ir.tensor(weight, name="w")
    model.graph.register_initializer(value)
    return model


def test_gelu_outputs_are_quantized_asymmetrically() -> None:
    weight = np.random.default_rng(0).normal(size=(WIDTH, INNER)).astype(np.float32)
    x = np.random.default_rng(1).normal(size=(200, WIDTH)).astype(np.float32) * 3
    want = run(gelu_graph(weight), x)
    model = gelu_graph(weight)
    assert quantize_int8(model, {"z": np.full(WIDTH, 10.0)}) == 1
    error = np.linalg.norm(run(model, x) - want) / np.linalg.norm(want)
    symmetric = np.maximum(x, 0)  # close enough to GELU to estimate its rounding error
    step = symmetric.max(axis=1, keepdims=True) / 127
    rounding = (np.rint(symmetric / step) * step - symmetric) @ weight
    assert error < 0.75 * np.linalg.norm(rounding) / np.linalg.norm(want) + 0.004  # 0.004: error of the weights


def test_lowest_values_of_gelu_are_not_clipped() -> None:
    weight = np.random.default_rng(0).normal(size=(WIDTH, INNER)).astype(np.float32)
    x = np.random.default_rng(1).uniform(-2, -0.3, size=(50, WIDTH)).astype(np.float32)  # GELU at its lowest
    model = gelu_graph(weight)
    quantize_int8(model, {"z": np.full(WIDTH, 10.0)})
    want = run(gelu_graph(weight), x)
    assert np.linalg.norm(run(model, x) - want) / np.linalg.norm(want) < 0.05


def test_rows_of_small_gelu_values_have_a_fine_scale() -> None:
    weight = np.random.default_rng(0).normal(size=(WIDTH, INNER)).astype(np.float32)
    x = np.random.default_rng(1).uniform(-0.02, 0.17, size=(50, WIDTH)).astype(np.float32)  # GELU up to 0.1
    model = gelu_graph(weight)
    quantize_int8(model, {"z": np.full(WIDTH, 10.0)})
    want = run(gelu_graph(weight), x)
    assert np.linalg.norm(run(model, x) - want) / np.linalg.norm(want) < 0.02


def test_each_column_has_its_own_scale() -> None:
    weight = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32) * [1, 10, 100, 1e-3, 1, 0]
    columns, scale = quantize_columns(weight.astype(np.float32))
    assert columns.dtype == np.int8
    assert np.abs(columns).max(axis=0).tolist() == [127, 127, 127, 127, 127, 0]
    np.testing.assert_allclose(columns * scale, weight, atol=float(scale.max()) / 2)


def test_float16_weights_are_cast_to_float32() -> None:
    model, weights = linear_graph(np.random.default_rng(0))
    assert halve_weights(model) == 2
    assert {value.dtype for value in model.graph.initializers.values()} == {ir.DataType.FLOAT16, ir.DataType.FLOAT}
    x = np.random.default_rng(1).normal(size=(2, 3, WIDTH)).astype(np.float32)
    halved = {name: weights[name].astype(np.float16).astype(np.float32) for name in ("a", "b")}
    want = (x @ halved["a"] + x @ halved["b"]) @ weights["whitening.weight"]
    np.testing.assert_allclose(run(model, x), want, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("transform", [halve_weights, lambda model: quantize_int8(model, {"x": np.ones(WIDTH)})])
def test_names_of_output_and_whitening_do_not_change(transform: object) -> None:
    model, _ = linear_graph(np.random.default_rng(0))
    transform(model)  # type: ignore[operator]
    assert [value.name for value in model.graph.outputs] == ["y"]
    assert "whitening.weight" in model.graph.initializers
    assert not {"a", "b"} & set(model.graph.initializers)
