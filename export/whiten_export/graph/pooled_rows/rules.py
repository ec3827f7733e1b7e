"""Say which operators work on each token without the others, and on which axis of their inputs the tokens are."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

_ELEMENTWISE = frozenset(
    (
        *("Abs", "Add", "And", "Cast", "Clip", "Div", "Elu", "Equal", "Erf", "Exp", "Gelu", "Greater"),
        *("GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max"),
        *("Min", "Mish", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sign", "Softplus"),
        *("Sqrt", "Sub", "Sum", "Tanh", "Where"),
    )
)


@dataclass(frozen=True)
class Tokens:
    """Says which axis of a value is that of the tokens."""

    axis: int
    flat: bool = False  # whether the axis, which is then the first, has the tokens of all texts


Shape = tuple[int | None, ...]
"""Sizes of the axes of a value; None where they depend on the texts."""

Inputs = dict[int, Tokens]
"""Axes of tokens of a node's inputs, by index; other inputs are the same for all tokens."""


@dataclass(frozen=True)
class Step:
    """Describes a node whose result is wanted for one token of each text."""

    node: ir.Node
    tokens: Tokens  # axis of the tokens in the result
    shapes: list[Shape]  # of the inputs
    result: Shape

    @property
    def axis(self) -> int:
        return self.tokens.axis

    @property
    def first(self) -> Inputs:
        """Return the same axis of the first input."""
        return {0: self.tokens}

    def moved(self, axis: int) -> Inputs | None:
        """Return another axis of the first input, behind that of the texts."""
        if self.tokens.flat:
            return {0: self.tokens} if axis == 0 else None
        return {0: Tokens(axis)} if axis > 0 else None

    def constant(self, index: int) -> list[int] | None:
        """Return the integers of an input."""
        value = self.node.inputs[index] if len(self.node.inputs) > index else None
        tensor = ir.convenience.get_const_tensor(value) if value is not None else None
        return None if tensor is None else [int(number) for number in np.ravel(tensor.numpy())]

    def axes(self, index: int, rank: int) -> set[int] | None:
        numbers = self.constant(index)
        return None if numbers is None else {number % rank for number in numbers}


def _elementwise(step: Step) -> Inputs | None:
    inputs: Inputs = {}
    for index, shape in enumerate(step.shapes):
        axis = step.axis - (len(step.result) - len(shape))
        if axis < 0 or shape[axis] == 1:
            continue
        if shape[axis] is not None or len(shape) < len(step.result):
            return None
        inputs[index] = Tokens(axis, step.tokens.flat)
    return inputs


def _of_rows(step: Step) -> Inputs | None:
    rank = len(step.result)
    if len(step.shapes[0]) != rank:
        return None
    rows = step.axis == rank - 2
    weights = step.axis < rank - 2 and len(step.shapes[1]) == 2
    return step.first if rows or weights else None


def _gemm(step: Step) -> Inputs | None:
    turned = step.node.attributes.get_int("transA", 0)
    if not step.tokens.flat or turned:
        return None
    summand = step.shapes[2] if len(step.shapes) > 2 else ()
    return step.first if len(summand) < 2 else None


def _along_an_axis(step: Step) -> Inputs | None:
    axis = step.node.attributes.get_int("axis", -1 if step.node.op_type == "Softmax" else 0) % len(step.result)
    return step.first if axis != step.axis else None


def _layer_normalization(step: Step) -> Inputs | None:
    axis = step.node.attributes.get_int("axis", -1) % len(step.result)
    mean_unused = not any(output.uses() for output in step.node.outputs[1:])
    return step.first if axis > step.axis and mean_unused else None


def _transpose(step: Step) -> Inputs | None:
    order = step.node.attributes.get_ints("perm", ())
    return step.moved(order[step.axis]) if order and order[0] == 0 and not step.tokens.flat else None


def _reshape(step: Step) -> Inputs | None:
    source, result = step.shapes[0], step.result
    if len(source) < 2 or len(result) < 2 or step.axis != (0 if step.tokens.flat else 1):
        return None
    flat = len(source) == 2 and not step.tokens.flat
    of_source, of_result = source[1 if flat else 2 :], result[1 if step.tokens.flat else 2 :]
    lead = (*source[: 1 if flat else 2], *result[: 1 if step.tokens.flat else 2])
    if any(size is not None for size in lead) or None in of_source or None in of_result:
        return None
    if prod(size or 0 for size in of_source) != prod(size or 0 for size in of_result):
        return None
    return {0: Tokens(0, flat=True) if flat else Tokens(1)}


def _reduce(step: Step) -> Inputs | None:
    rank = len(step.shapes[0])
    axes = step.axes(1, rank)
    if not axes:
        return None
    if step.node.attributes.get_int("keepdims", 1):
        return step.first if step.axis not in axes else None
    return step.moved([axis for axis in range(rank) if axis not in axes][step.axis]) if 0 not in axes else None


def _unsqueeze(step: Step) -> Inputs | None:
    axes = step.axes(1, len(step.result))
    if axes is None or {0, step.axis} & axes:
        return None
    return step.moved(step.axis - sum(axis < step.axis for axis in axes))


def _squeeze(step: Step) -> Inputs | None:
    rank = len(step.shapes[0])
    axes = step.axes(1, rank)
    if axes is None or 0 in axes:
        return None
    return step.moved([axis for axis in range(rank) if axis not in axes][step.axis])


def _slice(step: Step) -> Inputs | None:
    axes = step.axes(3, len(step.result))
    return step.first if axes is not None and step.axis not in axes else None


def _gather(step: Step) -> Inputs | None:
    axis = step.node.attributes.get_int("axis", 0) % len(step.shapes[0])
    if step.shapes[1] or axis == 0:
        return None
    return step.moved(step.axis + (axis <= step.axis))


def _concat(step: Step) -> Inputs | None:
    if step.node.attributes.get_int("axis", 0) % len(step.result) == step.axis:
        return None
    if any(shape[step.axis] is not None for shape in step.shapes):
        return None
    return dict.fromkeys(range(len(step.shapes)), step.tokens)


def _quantize_linear(step: Step) -> Inputs | None:
    axis = step.node.attributes.get_int("axis", 1) % len(step.result)
    of_tokens = [index for index in (1, 2) if len(step.shapes) > index and step.shapes[index]]
    if not of_tokens or axis != step.axis:
        return step.first
    return dict.fromkeys((0, *of_tokens), step.tokens) if step.tokens.flat else None


def _expand(step: Step) -> Inputs | None:
    """Follow a number that is repeated for each token of all texts, whose count is read from another value."""
    shape = step.node.inputs[1].producer() if step.node.inputs[1] is not None else None
    if step.shapes[0] or not step.tokens.flat or shape is None or shape.op_type != "Shape" or shape.attributes:
        return None
    return {1: step.tokens}


_RULES: dict[str, Callable[[Step], Inputs | None]] = {
    "Concat": _concat,
    "Expand": _expand,
    "Gather": _gather,
    "Gemm": _gemm,
    "LayerNormalization": _layer_normalization,
    "MatMul": _of_rows,
    "MatMulInteger": _of_rows,
    "QuantizeLinear": _quantize_linear,
    "ReduceMax": _reduce,
    "ReduceMean": _reduce,
    "ReduceSum": _reduce,
    "Reshape": _reshape,
    "Shape": lambda step: step.first if step.tokens.flat else None,
    "Slice": _slice,
    "Softmax": _along_an_axis,
    "Split": _along_an_axis,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""Rules of operators that work on each token without the others, by name."""


def inputs_of(step: Step) -> Inputs | None:
    """Return the axes of tokens of a node's inputs; None if it mixes tokens."""
    kind = step.node.op_type
    rule = _elementwise if kind in _ELEMENTWISE else _RULES.get(kind)
    if rule is None or step.node.domain or any(output.is_graph_output() for output in step.node.outputs):
        return None
    shared = not step.tokens.flat and (not step.result or step.result[0] is not None)
    return None if shared else rule(step)  # all texts share one value
