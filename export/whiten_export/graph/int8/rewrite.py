"""Rewrite matrix products to integers: calibrate activations, round weights, replace the nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from whiten_export.graph.attention import attentions, query_product, value_product
from whiten_export.graph.builder import constant
from whiten_export.graph.int8.measure import CalibrationTexts, Float32Array, measure_ranges
from whiten_export.graph.int8.rounding import (
    ROWS,
    Columns,
    quantize_columns,
    quantize_weights,
    quantize_with_feedback,
)
from whiten_export.graph.int8.scales import LEVELS, SYMMETRIC, Choice, Scale, choose_constants, choose_scales
from whiten_export.graph.products import (
    activations,
    bias_of,
    is_linear,
    shares_weights,
    weights_by_result,
    weights_of,
    width_of,
)
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter


@dataclass(frozen=True)
class Quantized:
    """Holds what int8 needs to know of an activation."""

    scale: Scale  # how it becomes uint8
    # weights of its products, by the name of the product's result; those that are missing are rounded to the
    # nearest
    columns: Mapping[str, Columns] = field(default_factory=dict)


@dataclass(frozen=True)
class Calibration:
    """Holds the scales of every activation of a graph, and the weights rounded for those that were chosen."""

    choices: Mapping[str, Choice]  # scales by the name of the activation
    chosen: Mapping[str, Quantized]  # scales and weights by the name of the activation
    grams: Mapping[str, Path]  # files of the Gram matrices of activations that may have a constant scale

    @property
    def constants(self) -> list[str]:
        """Return the names of the activations with a constant scale."""
        return [name for name, quantized in self.chosen.items() if quantized.scale.constant is not None]

    @property
    def plain(self) -> "Calibration":
        """Return a scale per token for every activation, and weights rounded to the nearest."""
        return replace(self, chosen={name: Quantized(choice.nearest) for name, choice in self.choices.items()})

    def without_constants(self, model: ir.Model) -> "Calibration":
        """Return scales per token for every activation; only weights of those with a constant one are rounded again."""
        names = self.constants
        rounded = {
            str(value.name): _quantized(
                value, self.choices[str(value.name)].token, np.load(self.grams[str(value.name)])
            )
            for value in activations(model)
            if value.name in names
        }
        return replace(self, chosen={**self.chosen, **rounded})


def calibrate(
    model: ir.Model, texts: CalibrationTexts, options: SessionOptions, folder: Path, report: Reporter
) -> Calibration:
    """Measure every activation of a graph once, choose its scale, and round its weights once, for that scale.

    Gram matrices that are needed again wait in files: those of a large network do not fit in memory together.
    """
    values = activations(model)
    choices: dict[str, Choice] = {}
    chosen: dict[str, Quantized] = {}
    grams: dict[str, Path] = {}
    with report.bar("products", 2 * len(values)) as advance:
        for value, measured in measure_ranges(model, values, texts, options, folder, report):
            name, producer = str(value.name), value.producer()
            weights = list(weights_by_result(value).values())
            function = producer.op_type if producer else None
            choices[name] = choose_scales(measured, weights, function, not shares_weights(value))
            if choices[name].constant is None:
                chosen[name] = _quantized(value, choices[name].token, measured.gram)
                advance(1)
            else:
                grams[name] = folder / f"gram.{len(grams)}.npy"
                np.save(grams[name], measured.gram)
            advance(1)
        constants = choose_constants(choices)
        for value in values:
            if (name := str(value.name)) in grams:
                scale = choices[name].constant if name in constants else None
                chosen[name] = _quantized(value, scale or choices[name].token, np.load(grams[name]))
                advance(1)
    return Calibration(choices, chosen, grams)


def _quantized(value: ir.Value, scale: Scale, gram: Float32Array) -> Quantized:
    """Return the scale of an activation, and the rounded weights of its products."""
    if shares_weights(value):
        return Quantized(scale)
    weights = weights_by_result(value)
    smoothed = scale.smoothed_weight(np.concatenate(list(weights.values()), axis=1))
    levels, steps = quantize_with_feedback(smoothed, scale.smoothed_gram(gram))
    ends = np.cumsum([weight.shape[1] for weight in weights.values()])[:-1]
    columns = map(np.ascontiguousarray, np.split(levels, ends, axis=1))
    return Quantized(scale, dict(zip(weights, zip(columns, np.split(steps, ends), strict=True), strict=True)))


def quantize_int8(model: ir.Model, quantized: Mapping[str, Quantized]) -> int:
    """Turn every MatMul with constant weights, and every large lookup table, into int8; the whitening stays float32."""
    rewriter = _Rewriter(model, quantized)
    rewriter.fold()
    replaced = 0
    for node in list(model.graph):
        if is_linear(node):
            rewriter.matmul(node)
        elif node.op_type == "Gather" and (table := weights_of(node.inputs[0])) is not None and table.ndim == 2:
            rewriter.lookup(node, table)
        else:
            continue
        replaced += 1
    RemoveUnusedNodesPass()(model)
    return replaced


@dataclass(frozen=True)
class _Rows:
    levels: ir.Value  # uint8, of the activation's shape, or [tokens, n] if there are scales per token
    scale: float  # constant scale of all tokens, or 1
    of_tokens: ir.Value | None = None  # scales [tokens, 1]; None if the scale is constant
    # shape of the activation except its last dimension, and -1; None if the scale is constant
    shape: ir.Value | None = None


@dataclass
class _Rewriter:
    model: ir.Model
    quantized: Mapping[str, Quantized]
    """Scales and weights by the name of the activation: a lookup that is replaced is another value of the same name."""
    results: dict[ir.Node, Float32Array] = field(default_factory=dict)
    """Factors by which the columns of a product and its bias are multiplied."""
    folded: set[str] = field(default_factory=set)
    """Activations that are already divided by their factors."""
    rows: dict[str, _Rows] = field(default_factory=dict)
    unity: ir.Value = field(init=False)

    def __post_init__(self) -> None:
        """Compute a 1 whose value is known only when the graph runs.

        onnxruntime turns MatMulInteger, Cast and the product with (a scale of the left) * (scales of the right) into
        one kernel that scales while the sums are in registers, but folds the product first if both are constant.
        """
        tape = Tape()
        batch = tape.op("Shape", [self.model.graph.inputs[0]], {"start": 0, "end": 1})
        one = self._constant("one_or_less", np.ones(1, np.float32))
        self.unity = tape.op("Min", [tape.op("Cast", [batch], {"to": ir.DataType.FLOAT.value}), one])
        self.model.graph.insert_before(next(iter(self.model.graph)), tape.nodes)

    def fold(self) -> None:
        """Move factors of attention scores into the queries' weights, and those of a context into the values'."""
        for attention in attentions(self.model):
            if (product := query_product(attention)) is not None:
                self.results[product] = np.float32(attention.scale) * self._result_factors(product)
                attention.node.attributes["scale"] = ir.AttrFloat32("scale", 1.0)
        for context in activations(self.model):
            product, factors = value_product(context), self.quantized[str(context.name)].scale.factors
            if factors is not None and product is not None:
                self.results[product] = self._result_factors(product) / factors
                self.folded.add(str(context.name))

    def _result_factors(self, product: ir.Node) -> Float32Array:
        weight = weights_of(product.inputs[1])
        assert weight is not None
        return self.results.get(product, np.ones(weight.shape[1], np.float32))

    def matmul(self, node: ir.Node) -> None:
        source, result, weight = node.inputs[0], node.outputs[0], weights_of(node.inputs[1])
        assert source is not None
        assert weight is not None
        assert node.inputs[1] is not None
        tape = Tape()
        if source.name not in self.rows:
            self.rows[str(source.name)] = self._quantize(tape, source)
        rows, quantized = self.rows[str(source.name)], self.quantized[str(source.name)]
        known = quantized.columns.get(str(result.name))
        columns, column_scale = known or quantize_weights(quantized.scale.smoothed_weight(weight))
        name = f"{node.inputs[1].name}.{source.name}"
        held = name if known or quantized.scale.factors is not None else node.inputs[1].name  # for all users if plain
        column_scale = column_scale * np.float32(rows.scale)
        zero = self._level_of_zero(quantized.scale.zero_point)
        operands = [rows.levels, self._constant(f"{held}.int8", columns), zero]
        sums = tape.op("Cast", [tape.op("MatMulInteger", operands)], {"to": ir.DataType.FLOAT.value})
        if node in self.results:
            column_scale = column_scale * self.results[node]
            self._multiply_bias(node)
        per_column = self._constant(f"{name}.{result.name}.scale", column_scale)
        product = tape.op("Mul", [sums, tape.op("Mul", [self.unity, per_column])])
        if rows.of_tokens is not None and rows.shape is not None:
            product = tape.op("Reshape", [tape.op("Mul", [product, rows.of_tokens]), rows.shape])
        self._replace(node, tape, product, result)

    def _multiply_bias(self, product: ir.Node) -> None:
        node = bias_of(product)
        if node is None:
            return
        index = next(index for index, value in enumerate(node.inputs) if value is not None and value.is_initializer())
        bias = node.inputs[index]
        assert bias is not None
        assert bias.const_value is not None
        folded = bias.const_value.numpy() * self.results[product]
        node.replace_input_with(index, self._constant(f"{bias.name}.{product.outputs[0].name}", folded))

    def lookup(self, node: ir.Node, table: NDArray[np.float32]) -> None:
        """Replace a lookup; each row of the table has its own scale."""
        ids, result = node.inputs[1], node.outputs[0]
        tape = Tape()
        parts = [quantize_columns(part.T) for part in np.array_split(table, len(table) // ROWS + 1)]
        rows, scale = np.concatenate([levels.T for levels, _ in parts]), np.concatenate([steps for _, steps in parts])
        name = f"{node.inputs[0].name}" if node.inputs[0] is not None else ""
        picked = tape.op("Gather", [self._constant(f"{name}.int8", rows), ids])
        scales = tape.op("Gather", [self._constant(f"{name}.scale", scale[:, None]), ids])
        full = tape.op("Cast", [picked], {"to": ir.DataType.FLOAT.value})
        self._replace(node, tape, tape.op("Mul", [full, scales]), result)

    def _quantize(self, tape: Tape, source: ir.Value) -> _Rows:
        scale = self.quantized[str(source.name)].scale
        values = source
        if scale.factors is not None and source.name not in self.folded:
            values = tape.op("Mul", [source, self._constant(f"{source.name}.smoothing", 1 / scale.factors)])
        if scale.constant is None:
            return self._quantize_rows(tape, source, values, scale)
        step = self._constant(f"{source.name}.step", np.float32(scale.constant))
        return _Rows(tape.op("QuantizeLinear", [values, step, self._level_of_zero(scale.zero_point)]), scale.constant)

    def _quantize_rows(self, tape: Tape, source: ir.Value, values: ir.Value, scale: Scale) -> _Rows:
        """Quantise as [tokens, n], each row with its own scale: QuantizeLinear has none for the last axis."""
        width = self._constant(f"{source.name}.rows", np.array([-1, width_of(source)], np.int64))
        flat = tape.op("Reshape", [values, width])
        last = self._constant("last_axis", np.array([-1], np.int64))
        above = LEVELS - scale.zero_point
        measured = tape.op("Abs", [flat]) if scale.zero_point == SYMMETRIC else flat
        largest = tape.op("ReduceMax", [measured, last], {"keepdims": 0})
        bounded = tape.op("Max", [largest, self._constant(f"least.{scale.least!r}", np.float32(scale.least))])
        steps = tape.op("Mul", [bounded, self._constant(f"level.{scale.zero_point}", np.float32(1 / above))])
        zeros = tape.op("Expand", [self._level_of_zero(scale.zero_point), tape.op("Shape", [steps])])
        levels = tape.op("QuantizeLinear", [flat, steps, zeros], {"axis": 0})
        lead = tape.op("Shape", [source], {"start": 0, "end": -1})
        shape = tape.op("Concat", [lead, last], {"axis": 0})
        return _Rows(levels, 1.0, tape.op("Unsqueeze", [steps, last]), shape)

    def _level_of_zero(self, zero_point: int) -> ir.Value:
        return self._constant(f"zero_point.{zero_point}", np.uint8(zero_point))

    def _constant(self, name: str, array: NDArray[np.generic] | np.generic) -> ir.Value:
        return constant(self.model.graph, f"quantized.{name}", array)

    def _replace(self, node: ir.Node, tape: Tape, value: ir.Value, result: ir.Value) -> None:
        self.model.graph.insert_before(node, tape.nodes)
        value.type, value.shape = result.type, result.shape
        name = result.name
        ir.convenience.replace_all_uses_with(result, value)
        self.model.graph.remove(node, safe=True)
        value.name = name
