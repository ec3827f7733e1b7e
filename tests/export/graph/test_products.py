"""Test that products with constant weights become MatMul with an initialiser."""

import numpy as np
import onnx_ir as ir
import pytest

from support.graphs import INNER, WIDTH, count, run
from whiten_export.graph.products import activations, plain_products, shares_weights

GENERATOR = np.random.default_rng(0)
WEIGHT = GENERATOR.normal(size=(INNER, WIDTH)).astype(np.float32)
BIAS = GENERATOR.normal(size=INNER).astype(np.float32)
HEAD = f'<ir_version: 10, opset_import: ["" : 20]> g (float[n, {WIDTH}] x) => (float[n, {INNER}] y)'


def graph(body: str, **arrays: np.ndarray) -> ir.Model:
    model = ir.from_onnx_text(f"{HEAD} <{', '.join(declared(arrays))}> {{ {body} }}")
    for value in list(model.graph.inputs)[1:]:
        model.graph.inputs.remove(value)
    uses = {value.name: value for node in model.graph for value in node.inputs if value is not None}
    for name, array in arrays.items():
        uses[name].const_value = ir.tensor(array, name=name)
        model.graph.initializers.pop(name, None)
        model.graph.register_initializer(uses[name])
    return model


def declared(arrays: dict[str, np.ndarray]) -> list[str]:
    return [f"float[{', '.join(map(str, array.shape))}] {name}" for name, array in arrays.items()]


@pytest.mark.parametrize("turned", [0, 1])
def test_gemm_becomes_matmul_and_add(turned: int) -> None:
    weight = WEIGHT if turned else np.ascontiguousarray(WEIGHT.T)
    model = graph(f"t = Gemm<transB = {turned}>(x, w, b) y = Identity(t)", w=weight, b=BIAS)
    x = GENERATOR.normal(size=(5, WIDTH)).astype(np.float32)
    want = run(model, x)
    plain_products(model)
    assert [node.op_type for node in model.graph] == ["MatMul", "Add", "Identity"]
    assert len(activations(model)) == 1
    np.testing.assert_allclose(run(model, x), want, rtol=1e-5, atol=1e-5)


def test_gemm_without_bias_becomes_matmul() -> None:
    """Exporters leave out a bias of zeros."""
    model = graph("t = Gemm<transB = 1>(x, w) y = Identity(t)", w=WEIGHT)
    x = GENERATOR.normal(size=(5, WIDTH)).astype(np.float32)
    want = run(model, x)
    plain_products(model)
    assert [node.op_type for node in model.graph] == ["MatMul", "Identity"]
    np.testing.assert_allclose(run(model, x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", ["alpha = 0.5", "beta = 2.0", "transA = 1"])
def test_gemm_that_does_more_is_left(options: str) -> None:
    model = graph(f"t = Gemm<transB = 1, {options}>(x, w, b) y = Identity(t)", w=WEIGHT, b=BIAS)
    plain_products(model)
    assert count(model, "Gemm") == 1


def test_shared_weights_are_transposed_once() -> None:
    body = "w1 = Transpose<perm = [1, 0]>(w) p = MatMul(x, w1) r = Neg(x) w2 = Transpose(w) "
    body += "w3 = Transpose<perm = [1, 0]>(w) q = MatMul(r, w3) y0 = Add(p, q) s = MatMul(x, w2) y = Add(y0, s)"
    model = graph(body, w=WEIGHT)
    x = GENERATOR.normal(size=(5, WIDTH)).astype(np.float32)
    want = run(model, x)
    plain_products(model)
    assert count(model, "Transpose") == 0
    assert sorted(model.graph.initializers) == ["w.transposed_1_0"]
    assert [shares_weights(value) for value in activations(model)] == [True, True]
    np.testing.assert_allclose(run(model, x), want, rtol=1e-5, atol=1e-5)


def test_weights_of_which_an_activation_has_others_of_its_own_are_not_shared() -> None:
    """As in DeBERTa: keys are shared with the relative positions, values are not."""
    body = "p = MatMul(x, w) r = Neg(x) q = MatMul(r, w) s = MatMul(x, v) y0 = Add(p, q) y = Add(y0, s)"
    weight = np.ascontiguousarray(WEIGHT.T)
    model = graph(body, w=weight, v=2 * weight)
    assert [shares_weights(value) for value in activations(model)] == [False, False]
