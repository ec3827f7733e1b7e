"""Test int8 on a graph of one attention: what is folded into weights, what is left alone, and a whole conversion."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from support.graphs import default_session, graph_of
from whiten_export.graph import int8 as convert
from whiten_export.graph import int8_scales as measuring
from whiten_export.graph.attention import attentions, lower_attention, value_product
from whiten_export.graph.build import activations, constant, reopen_graph, save_graph, weights_by_result
from whiten_export.graph.int8 import Quantized, calibrate, convert_to_int8, quantize_int8
from whiten_export.graph.int8_rounding import quantize_with_feedback
from whiten_export.graph.int8_scales import SYMMETRIC, CalibrationTexts, Scale, measure_ranges
from whiten_runtime.bundle.graph import OUTPUT
from whiten_runtime.inference.loading import open_engine
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter

WIDTH, HEADS = 64, 4


MARKED = f"o = whiten.attention.Attention<scale=0.25, window=[-1, -1], sizes=[{HEADS}, {HEADS}, 16, 16]>(q, k, v, real)"
OTHER = """turned = Transpose<perm=[0,1,3,2]>(k)
       s = MatMul(q, turned)
       c = Mul(s, scale)
       f = Cast<to=1>(attention_mask)
       inverse = Sub(one, f)
       pad = Unsqueeze(inverse, axes)
       m = Mul(pad, low)
       a = Add(c, m)
       p = Softmax<axis=-1>(a)
       o = MatMul(p, v)"""


def attention(mixed: str = MARKED, shared: str = "") -> ir.Model:
    """Return an attention with bias as PyTorch's exporter writes it."""
    text = f"""(int64[b, n] input_ids, int64[b, n] attention_mask) => (float[b, n, {WIDTH}] y)
    {{ x = Gather(table, input_ids)
       qp = MatMul(x, wq)
       qb = Add(qp, bq)
       qr = Reshape(qb, split)
       q = Transpose<perm=[0,2,1,3]>(qr)
       kp = MatMul(x, wk)
       kr = Reshape(kp, split)
       k = Transpose<perm=[0,2,1,3]>(kr)
       vp = MatMul(x, wv)
       vb = Add(vp, bv)
       vr = Reshape(vb, split)
       v = Transpose<perm=[0,2,1,3]>(vr)
       real = Cast<to=9>(attention_mask)
       {mixed}
       t = Transpose<perm=[0,2,1,3]>(o)
       context = Reshape(t, merge)
       z = MatMul(context, wo)
       y = Add(z, bo) {shared} }}"""
    generator = np.random.default_rng(0)
    weights = {name: generator.normal(size=(WIDTH, WIDTH)) / 8 for name in ("wq", "wk", "wv", "wo")}
    weights |= {name: generator.normal(size=WIDTH) for name in ("bq", "bv", "bo")}
    weights["table"] = generator.normal(size=(50, WIDTH))
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    arrays |= {"scale": np.float32(0.25), "one": np.float32(1), "low": np.float32(-1e4)}
    whole = {"split": [0, 0, HEADS, WIDTH // HEADS], "merge": [0, 0, WIDTH], "axes": [1, 2], "ones1": [1], "last": [2]}
    arrays |= {name: np.array(value, np.int64) for name, value in (whole | {"zero": 0, "reach": 20}).items()}
    return graph_of(text, arrays)


def read_too(mixed: str, read: str) -> ir.Model:
    """Return an attention with another output, `other`, of one of its values; without it for no name."""
    model = attention(mixed, f"other = Neg({read})" if read else "")
    if read:
        other = next(value for node in model.graph for value in node.outputs if value.name == "other")
        other.type = ir.TensorType(ir.DataType.FLOAT)
        model.graph.outputs.append(other)
    return model


def run(model: ir.Model) -> list[np.ndarray]:
    """Return the outputs of two texts, the second of three tokens, without its padding."""
    lower_attention(model, 512)
    session = default_session(ir.to_proto(model).SerializeToString())
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int64)
    ids = np.arange(10).reshape(2, 5)
    outputs = session.run(None, {"attention_mask": mask, "input_ids": ids})
    return [np.asarray(output).reshape(2, 5, -1)[mask.astype(bool)] for output in outputs]


@pytest.mark.parametrize("mixed", [MARKED, OTHER], ids=["marked", "other"])
@pytest.mark.parametrize("read", ["", "qb", "vb", "context", "t"])
@pytest.mark.parametrize("constant_scale", [True, False])
def test_outputs_stay_whatever_is_folded_into_weights(mixed: str, read: str, constant_scale: bool) -> None:
    """The scale of a marked attention and the smoothing of any go into weights whose results nothing else reads."""
    model = read_too(mixed, read)
    wanted = run(read_too(mixed, read))
    factors = np.geomspace(0.5, 2, WIDTH).astype(np.float32)
    scales = {str(value.name): Quantized(Scale(SYMMETRIC)) for value in activations(model)}
    scales["context"] = Quantized(Scale(SYMMETRIC, 0.05 if constant_scale else None, factors))
    assert quantize_int8(model, scales) == 5
    folded = 1.0 if read != "qb" else 0.25
    assert [marked.scale for marked in attentions(model)] == ([folded] if mixed == MARKED else [])
    assert any("smoothing" in name for name in model.graph.initializers) == (read in ("vb", "context", "t"))
    for got, want in zip(run(model), wanted, strict=True):
        assert np.linalg.norm(got - want) / np.linalg.norm(want) < 0.06


def test_values_of_one_head_for_all_are_left_alone() -> None:
    """Multi-query attention: the context has more channels than the values."""
    model = attention()
    values = next(node for node in model.graph if node.outputs[0].name == "vp")
    values.replace_input_with(1, constant(model.graph, "narrow", np.ones((WIDTH, WIDTH // HEADS), np.float32)))
    assert value_product(next(value for value in activations(model) if value.name == "context")) is None


POOLED = """
       f = Cast<to=1>(attention_mask)
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


CALIBRATION = CalibrationTexts(texts(0), texts(1), texts(2), [], 0)


def converted(folder: Path) -> tuple[ir.Model, Any]:
    return convert_to_int8(pooled(folder), CALIBRATION, folder, SessionOptions(), Reporter())


def test_a_graph_is_converted_and_described(tmp_path: Path) -> None:
    model, scales = converted(tmp_path)
    assert (scales.constant_scales, scales.token_scales) == (2, 0)
    assert 0.999 < scales.far_min_cosine < 1
    lower_attention(model, 512)
    save_graph(model, tmp_path / "int8" / "model.onnx")
    exact, got = (open_engine(tmp_path / name, 0) for name in ("lowered.onnx", "int8/model.onnx"))
    rows = texts(3)
    want = exact.run(rows)
    error = np.linalg.norm(got.run(rows) - want, axis=1) / np.linalg.norm(want, axis=1)
    assert 0 < error.max() < 0.05
    alone = np.concatenate([got.run([row]) for row in rows])
    np.testing.assert_allclose(got.run(rows), alone, rtol=1e-5, atol=1e-5)


def test_scales_per_token_are_taken_where_constants_lose_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, scales = converted(tmp_path)
    assert (scales.constant_scales, scales.token_scales) == (2, 0)
    monkeypatch.setattr(convert, "_LEAST", 1.1)
    _, scales = converted(tmp_path)
    assert (scales.constant_scales, scales.token_scales) == (0, 2)
    assert scales.far_min_cosine > scales.token_min_cosine, "weights are rounded with feedback"


@pytest.mark.parametrize("tokens", [measuring._AT_ONCE, 1])
def test_weights_are_rounded_by_the_gram_matrix_of_their_activation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    """However many tokens are added to it at once."""
    monkeypatch.setattr(measuring, "_AT_ONCE", tokens)
    save_graph(pooled(tmp_path), tmp_path / "model.onnx")
    model = ir.load(tmp_path / "model.onnx")
    calibration = calibrate(model, CALIBRATION, SessionOptions(), tmp_path, Reporter())
    assert len(calibration.chosen) == len(calibration.grams) == 2
    for value, own in measure_ranges(model, activations(model), CALIBRATION, SessionOptions(), tmp_path, Reporter()):
        scale, columns = calibration.chosen[str(value.name)].scale, calibration.chosen[str(value.name)].columns
        weights = weights_by_result(value)
        stacked = scale.smoothed_weight(np.concatenate(list(weights.values()), axis=1))
        levels, _ = quantize_with_feedback(stacked, scale.smoothed_gram(own.gram))
        np.testing.assert_array_equal(np.concatenate([columns[name][0] for name in weights], axis=1), levels)


def test_tokens_of_long_sentences_are_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges are of all tokens; Gram matrices, which wait for their activation in files, of some."""
    save_graph(pooled(tmp_path), tmp_path / "model.onnx")
    model = ir.load(tmp_path / "model.onnx")
    both = []
    for tokens in (measuring._TOKENS, sum(map(len, CALIBRATION.sentences)) // 4):
        monkeypatch.setattr(measuring, "_TOKENS", tokens)
        ranges = measure_ranges(model, activations(model), CALIBRATION, SessionOptions(), tmp_path, Reporter())
        both.append([measured for _, measured in ranges])
    for whole, thin in zip(*both, strict=True):
        np.testing.assert_array_equal((whole.low, whole.high), (thin.low, thin.high))
        assert 0 < np.trace(thin.gram) < 0.6 * np.trace(whole.gram)


def test_bars_reach_their_ends(tmp_path: Path) -> None:
    bars: list[tuple[int | None, list[int]]] = []

    class Counting(Reporter):
        @contextmanager
        def bar(self, unit: str, total: int | None) -> Iterator[Callable[[int], None]]:
            bars.append((total, []))
            yield bars[-1][1].append

    convert_to_int8(pooled(tmp_path), CALIBRATION, tmp_path, SessionOptions(), Counting())
    assert len(bars) == 2
    assert all(total == sum(counts) > 0 for total, counts in bars)
