"""Quantise a graph with standard ONNX operators: int8 with one activation scale per token, or float16 weights.

A text's vector must not depend on its neighbours in the batch, so no scale is shared between tokens: each row of
activations is quantised by its own largest magnitude, each column of weights by its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from whiten_export.graph.builder import OWN
from whiten_export.graph.head import MEAN, WEIGHT

_LEVELS = 127
"""Largest magnitude of an int8 weight."""

_TINY = 1e-12
"""Smallest magnitude of a row to divide by: a row of zeros stays a row of zeros."""

_SMOOTHING, _FAINT = 0.6, 1e-5
"""Exponent of the smoothing, the best of 0.3 to 0.9 on a real checkpoint, and the lower bound of magnitudes in it."""

_UNEVEN = 3.0
"""Largest channel over the median one from which an activation is smoothed; below it, smoothing gains nothing."""

_SMALL = 1024
"""Number of elements below which an initialiser is left as it is."""


_SYMMETRIC = 128
_ZERO_POINTS = {"Gelu": 24, "Relu": 0}
"""Level of 0 among the 256 of a uint8. After an activation function, nearly all levels are for values above 0."""


def activations(model: ir.Model) -> list[ir.Value]:
    """Return the values that `quantize_int8` will quantise row by row: those multiplied by constant weights."""
    return list(dict.fromkeys(node.inputs[0] for node in model.graph if _is_linear(node) and node.inputs[0]))


def quantize_int8(model: ir.Model, magnitudes: Mapping[str, NDArray[np.floating]]) -> int:
    """Turn every MatMul with constant weights, and every large lookup table, into int8. The whitening stays float32.

    Activations are uint8: x86 has no kernel for two signed operands. MatMuls that read the same value share its
    quantisation. Where a few channels are far larger than the others, only a few of the 256 levels would be left for
    the others: each channel is then divided by m^0.6 / w^0.4, where m is its largest magnitude and w that of the
    weights it is multiplied by, and these weights are multiplied by the same factor (SmoothQuant, Xiao et al. 2022,
    equation 4).

    Args:
        model: graph to change, in place.
        magnitudes: largest |x| of every channel of every value of `activations`, by the value's name.

    Returns:
        Number of nodes replaced.
    """
    rewriter = _Rewriter(model)
    for source in activations(model):
        rewriter.smooth(source, magnitudes[str(source.name)])
    replaced = 0
    for node in list(model.graph):
        if _is_linear(node):
            rewriter.matmul(node)
        elif node.op_type == "Gather" and (table := _weights(node.inputs[0])) is not None and table.ndim == 2:
            rewriter.lookup(node, table)
        else:
            continue
        replaced += 1
    RemoveUnusedNodesPass()(model)
    return replaced


def halve_weights(model: ir.Model) -> int:
    """Store every large weight but the whitening in float16, and cast it back when the graph is loaded.

    Returns:
        Number of initialisers replaced.
    """
    replaced = 0
    for value in list(model.graph.initializers.values()):
        weight = _weights(value)
        if weight is None:
            continue
        tape = Tape(model.graph)
        half = tape.initializer(ir.tensor(weight.astype(np.float16), name=f"{value.name}.half"))
        full = tape.op("Cast", [half], {"to": ir.DataType.FLOAT.value})
        full.name = f"{value.name}.full"
        replaced += 1
        ir.convenience.replace_all_uses_with(value, full)
        first = next(iter(model.graph))
        model.graph.insert_before(first, tape.nodes)
    RemoveUnusedNodesPass()(model)
    return replaced


@dataclass
class _Rewriter:
    model: ir.Model
    factors: dict[ir.Value, NDArray[np.float32]] = field(default_factory=dict)
    """Factors by which each channel of an uneven activation is divided, and its weights are multiplied."""
    rows: dict[ir.Value, tuple[ir.Value, ir.Value]] = field(default_factory=dict)
    """Quantised rows and scales [.., 1] of the activations so far."""
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

    def smooth(self, source: ir.Value, magnitude: NDArray[np.floating]) -> None:
        if _zero_point(source) != _SYMMETRIC or magnitude.max() < _UNEVEN * np.median(magnitude):
            return
        weights = [_weights(node.inputs[1]) for node, _ in source.uses() if _is_linear(node)]
        heaviest = np.max([np.abs(weight).max(axis=1) for weight in weights if weight is not None], axis=0)
        factors = np.maximum(magnitude, _FAINT) ** _SMOOTHING / np.maximum(heaviest, _FAINT) ** (1 - _SMOOTHING)
        self.factors[source] = factors.astype(np.float32)

    def matmul(self, node: ir.Node) -> None:
        source, result, weight = node.inputs[0], node.outputs[0], _weights(node.inputs[1])
        assert source is not None
        assert weight is not None
        tape = Tape()
        if source not in self.rows:
            self.rows[source] = self._quantize_rows(tape, source)
        rows, row_scale = self.rows[source]
        name = f"{node.inputs[1].name}" if node.inputs[1] is not None else ""
        if source in self.factors:  # another user of the same weights may have other factors
            weight, name = weight * self.factors[source][:, None], f"{name}.{source.name}"
        columns, column_scale = quantize_columns(weight)
        operands = [rows, self._constant(f"{name}.int8", columns), self._level_of_zero(_zero_point(source))]
        products = tape.op("Cast", [tape.op("MatMulInteger", operands)], {"to": ir.DataType.FLOAT.value})
        scales = tape.op("Mul", [self.unity, self._constant(f"{name}.scale", column_scale)])
        self._replace(node, tape, tape.op("Mul", [tape.op("Mul", [products, scales]), row_scale]), result)

    def lookup(self, node: ir.Node, table: NDArray[np.float32]) -> None:
        """Replace a lookup; each row of the table has its own scale."""
        ids, result = node.inputs[1], node.outputs[0]
        tape = Tape()
        rows, scale = quantize_columns(table.T)
        name = f"{node.inputs[0].name}" if node.inputs[0] is not None else ""
        picked = tape.op("Gather", [self._constant(f"{name}.int8", np.ascontiguousarray(rows.T)), ids])
        scales = tape.op("Gather", [self._constant(f"{name}.scale", scale[:, None]), ids])
        full = tape.op("Cast", [picked], {"to": ir.DataType.FLOAT.value})
        self._replace(node, tape, tape.op("Mul", [full, scales]), result)

    def _quantize_rows(self, tape: Tape, source: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return round(x / s) + zero point, and the scale s of each row, whose extremes become levels."""
        axes = self._constant("last_axis", np.array([-1], np.int64))
        zero_point = _zero_point(source)
        above = 255 - zero_point
        if source in self.factors:
            source = tape.op("Mul", [source, self._constant(f"{source.name}.smoothing", 1 / self.factors[source])])
        if zero_point == _SYMMETRIC:
            largest = [tape.op("ReduceMax", [tape.op("Abs", [source]), axes], {"keepdims": 1})]
        else:
            largest = [tape.op("ReduceMax", [source, axes], {"keepdims": 1})]
        if zero_point not in (_SYMMETRIC, 0):
            least = tape.op("ReduceMin", [source, axes], {"keepdims": 1})
            mirrored = self._constant(f"mirror.{zero_point}", np.float32(-above / zero_point))
            largest.append(tape.op("Mul", [least, mirrored]))
        bounded = tape.op("Max", [*largest, self._constant("tiny", np.float32(_TINY))])
        scale = tape.op("Mul", [bounded, self._constant(f"level.{zero_point}", np.float32(1 / above))])
        scaled = tape.op("Mul", [source, tape.op("Reciprocal", [scale])])
        one = self._constant("one", np.float32(1))
        return tape.op("QuantizeLinear", [scaled, one, self._level_of_zero(zero_point)]), scale

    def _level_of_zero(self, zero_point: int) -> ir.Value:
        return self._constant(f"zero_point.{zero_point}", np.uint8(zero_point))

    def _constant(self, name: str, array: NDArray[np.generic] | np.generic) -> ir.Value:
        full_name = f"quantized.{name}"
        known = self.model.graph.initializers.get(full_name)
        if known is not None:
            return known
        tensor = ir.tensor(np.asarray(array), name=full_name)
        shape = ir.Shape(array.shape)
        value = ir.Value(name=full_name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        self.model.graph.register_initializer(value)
        return value

    def _replace(self, node: ir.Node, tape: Tape, value: ir.Value, result: ir.Value) -> None:
        self.model.graph.insert_before(node, tape.nodes)
        value.type, value.shape = result.type, result.shape
        name = result.name
        ir.convenience.replace_all_uses_with(result, value)
        self.model.graph.remove(node, safe=True)
        value.name = name


def quantize_columns(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantise to symmetric int8 with a scale per column: weight [n, m] ≈ int8 [n, m] * scale [m]."""
    scale = np.maximum(np.abs(weight).max(axis=0), _TINY) / _LEVELS
    return np.rint(weight / scale).astype(np.int8), scale.astype(np.float32)


def _zero_point(source: ir.Value) -> int:
    producer = source.producer()
    return _ZERO_POINTS.get(producer.op_type, _SYMMETRIC) if producer is not None else _SYMMETRIC


def _is_linear(node: ir.Node) -> bool:
    weight = _weights(node.inputs[1]) if node.op_type == "MatMul" else None
    return weight is not None and weight.ndim == 2


def _weights(value: ir.Value | None) -> NDArray[np.float32] | None:
    """Return a large float32 initialiser of the network, as an array; None for the modules and the whitening."""
    if value is None or not value.is_initializer() or value.const_value is None:
        return None
    if value.name in (MEAN, WEIGHT) or str(value.name).startswith(OWN):
        return None
    if value.const_value.dtype != ir.DataType.FLOAT or value.const_value.size < _SMALL:
        return None
    return value.const_value.numpy()
