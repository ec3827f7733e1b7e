"""Test that additions before normalisations become Sum, with the same bits, and that onnxruntime fuses them no more."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from support.graphs import additions_before_norms, default_session, fused
from whiten_export.graph.build import sum_residuals
from whiten_runtime.ort.session import SessionOptions, create_session

WIDTH = 64
ONES = ", ".join(["1"] * WIDTH)
SHAPE = f"float[batch, tokens, {WIDTH}]"
NORM = "y = LayerNormalization<axis = -1, epsilon = 1e-12>({}, scale, bias)"
OLDER = (
    "m = ReduceMean<keepdims = 1>({0}, last) d = Sub({0}, m) q = Pow(d, two) v = ReduceMean<keepdims = 1>(q, last) "
    "e = Add(v, small) r = Sqrt(e) n = Div(d, r) g = Mul(n, scale) y = Add(g, bias)"
)
"""LayerNormalization as exporters wrote it before opset 17."""


def graph(body: str) -> ir.Model:
    constants = f"float[{WIDTH}] scale = {{{ONES}}}, float[{WIDTH}] bias = {{{ONES}}}, int64[1] last = {{-1}}"
    constants += ", float two = {2.0}, float small = {1e-12}"
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
    g ({SHAPE} a, {SHAPE} b, {SHAPE} c) => ({SHAPE} y) <{constants}> {{ {body} }}"""
    return ir.from_onnx_text(text)


FUSED_BEFORE = {
    "residual": "t = Add(a, b) " + NORM.format("t"),
    "bias and residual": "s = Add(a, bias) t = Add(s, b) " + NORM.format("t"),
    "residual and bias": "s = Add(b, bias) t = Add(a, s) " + NORM.format("t"),
    "two additions": "s = Add(a, b) t = Add(s, c) " + NORM.format("t"),
    "older form": "t = Add(a, b) " + OLDER.format("t"),
}

READ_TWICE = FUSED_BEFORE["residual"].replace("y =", "u =") + " y = Add(u, t)"
"""As in networks that normalise before a block, such as GPT-2. onnxruntime leaves it."""


@pytest.mark.parametrize("body", FUSED_BEFORE.values(), ids=FUSED_BEFORE)
def test_no_addition_is_fused_with_a_normalisation(tmp_path: Path, body: str) -> None:
    model, path = graph(body), tmp_path / "model.onnx"
    ir.save(model, path)
    assert fused(path, tmp_path)["SkipLayerNormalization"] == 1
    assert len(additions_before_norms(path)) == 1
    assert sum_residuals(model) == 1
    ir.save(model, path)
    after = fused(path, tmp_path)
    assert after["SkipLayerNormalization"] == 0
    assert after["Sum"] == after["LayerNormalization"] == 1
    assert additions_before_norms(path) == []


@pytest.mark.parametrize("body", [*FUSED_BEFORE.values(), READ_TWICE], ids=[*FUSED_BEFORE, "read twice"])
def test_default_sessions_give_the_bits_that_the_addition_gave(tmp_path: Path, body: str) -> None:
    model, path = graph(body), tmp_path / "model.onnx"
    generator = np.random.default_rng(0)
    feed = {name: generator.normal(size=(3, 5, WIDTH)).astype(np.float32) for name in "abc"}
    feed = {name: feed[name] for name in (value.name for value in model.graph.inputs)}
    ir.save(model, path)
    (want,) = create_session(path, SessionOptions()).run(None, feed)
    sum_residuals(model)
    ir.save(model, path)
    for session in (default_session(path), create_session(path, SessionOptions())):
        np.testing.assert_array_equal(session.run(None, feed)[0], want)
