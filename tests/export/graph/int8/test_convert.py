"""Test the conversion of a whole graph, with one attention: it takes scales per token where constants lose too much."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from support.attention_graph import WIDTH, attention
from whiten_export.graph.builder import reopen_graph, save_graph
from whiten_export.graph.int8 import convert, rewrite
from whiten_export.graph.int8.convert import convert_to_int8
from whiten_export.graph.int8.linear import activations
from whiten_export.graph.int8.scales import CalibrationTexts
from whiten_runtime.bundle.graph import OUTPUT
from whiten_runtime.inference.engine import Engine
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter

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
