"""Test int8 on a graph of one attention: what is folded into weights, what is left alone, and a whole conversion."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from support.graphs import default_session
from whiten_export.graph.builder import constant, reopen_graph, save_graph
from whiten_export.graph.int8 import convert, rewrite
from whiten_export.graph.int8.convert import convert_to_int8, narrow_masks
from whiten_export.graph.int8.rewrite import Quantized, quantize_int8
from whiten_export.graph.int8.scales import SYMMETRIC, CalibrationTexts, Scale
from whiten_export.graph.products import activations, score_scales, value_product
from whiten_runtime.bundle.graph import OUTPUT
from whiten_runtime.inference.engine import Engine
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter

WIDTH, HEADS = 64, 4


def attention(scores: str = "c = Mul(s, scale)", mask: str = "m = Mul(pad, low)", shared: str = "") -> ir.Model:
    """Return an attention with bias, mask and scale as PyTorch's exporter writes it."""
    model = ir.from_onnx_text(f"""
    <ir_version: 10, opset_import: ["" : 20]>
    g (int64[b, n] input_ids, int64[b, n] attention_mask) => (float[b, n, {WIDTH}] y)
    {{ x = Gather(table, input_ids)
       qp = MatMul(x, wq)
       qb = Add(qp, bq)
       qr = Reshape(qb, split)
       q = Transpose<perm=[0,2,1,3]>(qr)
       kp = MatMul(x, wk)
       kr = Reshape(kp, split)
       k = Transpose<perm=[0,2,3,1]>(kr)
       vp = MatMul(x, wv)
       vb = Add(vp, bv)
       vr = Reshape(vb, split)
       v = Transpose<perm=[0,2,1,3]>(vr)
       s = MatMul(q, k)
       {scores}
       f = Cast<to=1>(attention_mask)
       inverse = Sub(one, f)
       pad0 = Unsqueeze(inverse, axes)
       length = Shape<start=1, end=2>(attention_mask)
       tall = Concat<axis=0>(ones1, ones1, length, ones1)
       pad = Expand(pad0, tall)
       {mask}
       a = Add(c, m)
       p = Softmax<axis=-1>(a)
       o = MatMul(p, v)
       t = Transpose<perm=[0,2,1,3]>(o)
       context = Reshape(t, merge)
       z = MatMul(context, wo)
       y = Add(z, bo) {shared} }}
    """)
    generator = np.random.default_rng(0)
    weights = {name: generator.normal(size=(WIDTH, WIDTH)) / 8 for name in ("wq", "wk", "wv", "wo")}
    weights |= {name: generator.normal(size=WIDTH) for name in ("bq", "bv", "bo")}
    weights["table"] = generator.normal(size=(50, WIDTH))
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    arrays |= {"scale": np.float32(4 if "Div" in scores else 0.25), "one": np.float32(1), "low": np.float32(-1e4)}
    whole = {"split": [0, 0, HEADS, WIDTH // HEADS], "merge": [0, 0, WIDTH], "axes": [1, 2], "ones1": [1], "last": [2]}
    arrays |= {name: np.array(value, np.int64) for name, value in whole.items()}
    for name, array in arrays.items():
        users = [
            (node, i) for node in model.graph for i, v in enumerate(node.inputs) if v is not None and v.name == name
        ]
        for node, index in users:
            node.replace_input_with(index, constant(model.graph, name, array))
    return model


def run(model: ir.Model) -> np.ndarray:
    session = default_session(ir.to_proto(model).SerializeToString())
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int64)
    ids = np.arange(10).reshape(2, 5)
    (y,) = session.run(["y"], {"attention_mask": mask, "input_ids": ids})
    return np.asarray(y)[mask.astype(bool)]


def count(model: ir.Model, kind: str) -> int:
    return sum(node.op_type == kind for node in model.graph)


@pytest.mark.parametrize("scores", ["c = Mul(s, scale)", "c = Mul(scale, s)", "c = Div(s, scale)"])
@pytest.mark.parametrize("constant_scale", [True, False])
def test_scale_and_smoothing_are_folded(scores: str, constant_scale: bool) -> None:
    model, want = attention(scores), run(attention(scores))
    assert len(score_scales(model)) == 1
    before = count(model, "Mul") + count(model, "Div")
    factors = np.geomspace(0.5, 2, WIDTH).astype(np.float32)
    context = Scale(SYMMETRIC, 0.05 if constant_scale else None, factors)
    scales = {str(value.name): Quantized(Scale(SYMMETRIC)) for value in activations(model)} | {
        "context": Quantized(context)
    }
    assert quantize_int8(model, scales) == 5
    added = 1 + 4 * 2 + 2 + 2 * (1 + (not constant_scale))  # scales of columns; of rows, at most two quantisations
    assert count(model, "Mul") + count(model, "Div") <= before - 1 + added
    assert not any("smoothing" in name for name in model.graph.initializers)
    error = np.linalg.norm(run(model) - want) / np.linalg.norm(want)
    assert error < 0.06, error


@pytest.mark.parametrize("scores", ["c = Mul(s, s)", "c = Mul(s, m)", "c = Identity(s)"])
def test_other_products_of_scores_are_left_alone(scores: str) -> None:
    mask = "m = Mul(pad, low)"
    text = {"scores": f"{mask}\n{scores}", "mask": ""}
    assert not score_scales(attention(**text))


def test_values_that_are_read_elsewhere_are_left_alone() -> None:
    plain, read = attention(), attention(shared="other = Neg(vb)")
    read.graph.outputs.append(next(value for node in read.graph for value in node.outputs if value.name == "other"))
    found = [value_product(next(v for v in activations(model) if v.name == "context")) for model in (plain, read)]
    assert found[0] is not None
    assert found[0].outputs[0].name == "vp"
    assert found[1] is None


@pytest.mark.parametrize("read", ["other = Neg(context)", "other = Neg(t)", "other = Neg(o)"])
def test_context_that_is_read_elsewhere_is_left_alone(read: str) -> None:
    model = attention(shared=read)
    model.graph.outputs.append(next(value for node in model.graph for value in node.outputs if value.name == "other"))
    assert value_product(next(value for value in activations(model) if value.name == "context")) is None


def test_values_of_one_head_for_all_are_left_alone() -> None:
    """Multi-query attention: the context has more channels than the values."""
    model = attention()
    values = next(node for node in model.graph if node.outputs[0].name == "vp")
    values.replace_input_with(1, constant(model.graph, "narrow", np.ones((WIDTH, WIDTH // HEADS), np.float32)))
    assert value_product(next(value for value in activations(model) if value.name == "context")) is None


def test_mask_that_is_made_from_token_ids_is_left_alone() -> None:
    """As in encoders that know padding by its id: `attention_mask` says nothing there."""
    mask = """known = Equal(input_ids, zero)
       k1 = Cast<to=1>(known)
       k2 = Unsqueeze(k1, axes)
       m = Mul(k2, low)"""
    model = attention(mask=mask)
    for node in model.graph:
        if node.op_type == "Equal":
            node.replace_input_with(1, constant(model.graph, "zero", np.array(0, np.int64)))
    assert narrow_masks(model, 64) == 0


def test_mask_of_equal_rows_becomes_one_row() -> None:
    model, want = attention(), run(attention())
    assert narrow_masks(model, 64) == 1
    assert (count(model, "Expand"), count(model, "Where")) == (0, 1)
    np.testing.assert_array_equal(run(model), want)


def test_mask_that_differs_between_queries_is_left_alone() -> None:
    """As in a decoder: a token does not attend to those after it."""
    causal = "u = Trilu<upper=1>(pad)\n m0 = Mul(pad, low)\n m = Add(m0, u)"
    model = attention(mask=causal)
    assert narrow_masks(model, 64) == 0


def test_mask_of_a_window_is_left_alone() -> None:
    """As in ModernBERT: short texts do not show that a token attends to its neighbours only."""
    window = """far0 = Trilu<upper=1>(pad1, reach)
       far = Mul(far0, low)
       near = Mul(pad, low)
       m = Add(near, far)"""
    model = attention(mask=f"pad1 = Add(pad, one)\n {window}")
    for node in model.graph:
        if node.op_type == "Trilu":
            node.replace_input_with(1, constant(model.graph, "reach", np.array(20, np.int64)))
    assert narrow_masks(model, 64) == 0
    assert narrow_masks(attention(), 8192) == 0


POOLED = """
       f3 = Unsqueeze(f, last)
       kept = Mul(y, f3)
       sentence_embedding = ReduceSum<keepdims=0>(kept, ones1)"""


def texts(seed: int) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(1, 50, length).tolist() for length in range(2, 30)]


def pooled(folder: Path) -> ir.Model:
    model = attention(shared=POOLED)
    (vectors,) = [value for node in model.graph for value in node.outputs if value.name == OUTPUT]
    vectors.shape, vectors.type = ir.Shape(["batch_size", WIDTH]), ir.TensorType(ir.DataType.FLOAT)
    model.graph.outputs[:] = [vectors]
    return reopen_graph(model, folder / "model.onnx")


def converted(folder: Path) -> tuple[ir.Model, Any]:
    calibration = CalibrationTexts(texts(0), texts(1), 0)
    return convert_to_int8(pooled(folder), calibration, texts(2), 64, folder, SessionOptions(), Reporter())


def test_a_graph_is_converted_and_described(tmp_path: Path) -> None:
    model, scales = converted(tmp_path)
    assert (scales.constant_scales, scales.token_scales) == (2, 0)
    assert 0.999 < scales.far_min_cosine < 1
    save_graph(model, tmp_path / "int8" / "model.onnx")
    exact, got = (Engine(tmp_path / name, 0) for name in ("float32.onnx", "int8/model.onnx"))
    rows = texts(3)
    want = exact.vectors(rows)
    error = np.linalg.norm(got.vectors(rows) - want, axis=1) / np.linalg.norm(want, axis=1)
    assert 0 < error.max() < 0.05
    alone = np.concatenate([got.vectors([row]) for row in rows])
    np.testing.assert_allclose(got.vectors(rows), alone, rtol=1e-5, atol=1e-5)


def test_scales_per_token_are_taken_where_constants_lose_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Sequence[str | None]] = []
    real = rewrite.measure_ranges

    def watched(model: ir.Model, values: Sequence[ir.Value], *rest: Any) -> Any:
        measured.append([value.name for value in values])
        return real(model, values, *rest)

    monkeypatch.setattr(rewrite, "measure_ranges", watched)
    monkeypatch.setattr(convert, "_WORSE", -1.0)  # nothing is good enough
    _, scales = converted(tmp_path)
    assert (scales.constant_scales, scales.token_scales) == (0, 2)
    names = [value.name for value in activations(attention())]
    assert measured[0] == measured[-1] == names
    assert sum(map(len, measured)) == 2 * len(names), "a scale that stays is not measured again"
