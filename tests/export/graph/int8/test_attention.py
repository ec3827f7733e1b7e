"""Test what is folded into the weights before an attention, and what is left alone, on a small attention."""

import numpy as np
import onnx_ir as ir
import pytest

from support.attention_graph import HEADS, WIDTH, attention
from support.default_sessions import default_session
from whiten_export.graph.builder import constant
from whiten_export.graph.int8.convert import narrow_masks
from whiten_export.graph.int8.linear import activations, score_scales, value_product
from whiten_export.graph.int8.rewrite import Quantized, quantize_int8
from whiten_export.graph.int8.scales import SYMMETRIC, Scale


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
