"""Test that products with constant weights become MatMul with an initialiser, and their weights in float16."""

import numpy as np
import onnx_ir as ir
import pytest

from support.graphs import INNER, WIDTH, count, graph_of, linear_graph, run
from whiten_export.graph.build import activations, plain_products, shares_weights
from whiten_export.graph.precision import halve_weights

GENERATOR = np.random.default_rng(0)
WEIGHT = GENERATOR.normal(size=(INNER, WIDTH)).astype(np.float32)
BIAS = GENERATOR.normal(size=INNER).astype(np.float32)


def graph(body: str, **arrays: np.ndarray) -> ir.Model:
    return graph_of(f"(float[n, {WIDTH}] x) => (float[n, {INNER}] y) {{ {body} }}", arrays)


@pytest.mark.parametrize(
    ("turned", "biased"), [(0, True), (1, True), (1, False)], ids=["as is", "turned", "without a bias of zeros"]
)
def test_gemm_becomes_matmul_and_add(turned: int, biased: bool) -> None:
    weight = WEIGHT if turned else np.ascontiguousarray(WEIGHT.T)
    model = graph(f"t = Gemm<transB = {turned}>(x, w{', b' if biased else ''}) y = Identity(t)", w=weight, b=BIAS)
    x = GENERATOR.normal(size=(5, WIDTH)).astype(np.float32)
    want = run(model, x)
    plain_products(model)
    assert [node.op_type for node in model.graph] == ["MatMul", *(["Add"] if biased else []), "Identity"]
    assert len(activations(model)) == 1
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


def test_float16_weights_are_cast_to_float32() -> None:
    model, weights = linear_graph(np.random.default_rng(0))
    assert halve_weights(model) == 2
    assert {value.dtype for value in model.graph.initializers.values()} == {ir.DataType.FLOAT16, ir.DataType.FLOAT}
    x = np.random.default_rng(1).normal(size=(2, 3, WIDTH)).astype(np.float32)
    halved = {name: weights[name].astype(np.float16).astype(np.float32) for name in ("a", "b")}
    want = (x @ halved["a"] + x @ halved["b"]) @ weights["whitening.weight"]
    np.testing.assert_allclose(run(model, x), want, rtol=1e-4, atol=1e-2)
    assert [value.name for value in model.graph.outputs] == ["y"]
    assert not {"a", "b"} & set(model.graph.initializers)
