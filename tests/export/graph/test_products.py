"""Test that products with constant weights become MatMul with an initialiser, and their weights in float16."""

import numpy as np
import onnx_ir as ir
import pytest

from support.graphs import INNER, WIDTH, count, graph_of, run
from whiten_export.graph.build import activations, plain_products, shares_weights

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
