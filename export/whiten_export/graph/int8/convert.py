"""Convert a graph to int8, with as many constant scales as texts far from the calibration allow."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from whiten_export.graph.files import save_graph, save_with_outputs
from whiten_export.graph.int8.narrow_mask import narrow_masks
from whiten_export.graph.int8.quantize import Calibration, Quantized, calibrate
from whiten_export.graph.int8.ranges import CalibrationTexts
from whiten_export.graph.int8.rewrite import quantize_int8
from whiten_export.graph.int8.rounding import largest_pair
from whiten_export.graph.int8.scales import MOST
from whiten_export.graph.products import plain_products
from whiten_runtime.bundle.manifest import QuantizationRecord
from whiten_runtime.bundle.parity import Agreement, compare
from whiten_runtime.inference.engine import Engine
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter

_WORSE = 0.002
"""Largest difference, of the worst cosine on far texts, from that with a scale for each token everywhere."""


def convert_to_int8(
    graph: ir.Model,
    texts: CalibrationTexts,
    far: Sequence[Sequence[int]],
    longest: int,
    folder: Path,
    options: SessionOptions,
    report: Reporter,
) -> tuple[ir.Model, QuantizationRecord]:
    """Return the graph in int8, with constant scales where texts far from the calibration lose little by them."""
    path = folder / "float32.onnx"
    plain_products(graph)
    save_with_outputs(graph, list(graph.graph.outputs), path)
    exact = _vectors(path, far, texts.pad_token_id, options)
    narrow_masks(graph, longest)
    save_with_outputs(graph, list(graph.graph.outputs), path)

    def converted(scales: Mapping[str, Quantized]) -> tuple[ir.Model, Agreement]:
        model, trial = ir.load(path), folder / "int8" / path.name
        quantize_int8(model, scales)
        save_graph(model, trial)
        return model, compare(_vectors(trial, far, texts.pad_token_id, options), exact)

    usual: Agreement | None = None
    calibration: Calibration | None = None
    for most in MOST:
        calibration = calibrate(ir.load(path), texts, options, folder / "calibration.onnx", most, calibration)
        usual = usual or converted(calibration.plain)[1]
        model, agreement = converted(calibration.chosen)
        if agreement.min_cosine >= usual.min_cosine - _WORSE or not calibration.constants:
            break
        report.stage(f"{calibration.constants} constant scales lose too much on unusual texts; trying fewer")
    assert usual is not None
    assert calibration is not None
    return model, _record(model, calibration, agreement, usual)


def _vectors(
    path: Path, ids: Sequence[Sequence[int]], pad_token_id: int, options: SessionOptions
) -> NDArray[np.float32]:
    engine = Engine(path, pad_token_id, options)
    try:
        return engine.vectors(ids)
    finally:
        engine.close()


def _record(model: ir.Model, calibration: Calibration, agreement: Agreement, usual: Agreement) -> QuantizationRecord:
    products = [node.inputs[1] for node in model.graph if node.op_type == "MatMulInteger"]
    weights = [value.const_value.numpy() for value in products if value is not None and value.const_value is not None]
    return QuantizationRecord(
        constant_scales=calibration.constants,
        token_scales=len(calibration.chosen) - calibration.constants,
        far_min_cosine=agreement.min_cosine,
        far_mean_cosine=agreement.mean_cosine,
        token_min_cosine=usual.min_cosine,
        largest_pair=max(map(largest_pair, weights), default=0),
    )
