"""Measure a graph, choose its scales, and round its weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from whiten_export.graph.int8.linear import activations, linear_users, shares_weights, stacked_weights, weights_of
from whiten_export.graph.int8.ranges import CalibrationTexts, measure_ranges
from whiten_export.graph.int8.rounding import Columns, quantize_with_feedback
from whiten_export.graph.int8.scales import Choice, Float32Array, Scale, choose_scales
from whiten_runtime.ort.session import SessionOptions


@dataclass(frozen=True)
class Quantized:
    """Holds what int8 needs to know of an activation."""

    scale: Scale  # how it becomes uint8
    # weights of its products, by the name of the product's result; those that are missing are rounded to the
    # nearest
    columns: Mapping[str, Columns] = field(default_factory=dict)


@dataclass(frozen=True)
class Calibration:
    """Holds the scales of every activation of a graph, and its rounded weights for the scales that were chosen."""

    choices: Mapping[str, Choice]  # scales by the name of the activation
    chosen: Mapping[str, Quantized]  # scales and weights by the name of the activation

    @property
    def constants(self) -> int:
        """Return the number of activations with a constant scale."""
        return sum(quantized.scale.constant is not None for quantized in self.chosen.values())

    @property
    def plain(self) -> dict[str, Quantized]:
        """Return a scale per token for every activation, and weights rounded to the nearest."""
        return {name: Quantized(choice.token) for name, choice in self.choices.items()}


def calibrate(
    model: ir.Model,
    texts: CalibrationTexts,
    options: SessionOptions,
    path: Path,
    most: float,
    before: Calibration | None = None,
) -> Calibration:
    """Choose the scale of every activation of a graph, and round the weights for it."""
    choices = dict(before.choices) if before is not None else {}
    chosen = dict(before.chosen) if before is not None else {}

    def changes(name: str) -> bool:
        return name not in chosen or choices[name].within(most) is not chosen[name].scale

    values = [value for value in activations(model) if changes(str(value.name))]
    for value, measured in measure_ranges(model, values, texts, options, path):
        name, producer, shared = str(value.name), value.producer(), shares_weights(value)
        if name not in choices:
            function = producer.op_type if producer else None
            choices[name] = choose_scales(measured, stacked_weights(value), function, not shared)
        scale = choices[name].within(most)
        chosen[name] = Quantized(scale, {} if shared else _rounded(value, scale, measured.gram))
    return Calibration(choices, chosen)


def _rounded(value: ir.Value, scale: Scale, gram: Float32Array) -> dict[str, Columns]:
    """Return the rounded weights of the products of an activation, by the name of the product's result."""
    if scale.factors is not None:
        gram = gram / np.outer(scale.factors, scale.factors)
    columns = {}
    for node in linear_users(value):
        weight = weights_of(node.inputs[1])
        assert weight is not None
        columns[str(node.outputs[0].name)] = quantize_with_feedback(scale.smoothed_weight(weight), gram)
    return columns
