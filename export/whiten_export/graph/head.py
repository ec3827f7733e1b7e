"""Append the head to a graph: whitening, normalisation and rounding to whole numbers."""

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike
from onnx_ir.passes.common import RemoveUnusedNodesPass

from whiten_export.graph.builder import GraphBuilder, describe
from whiten_export.graph.pooling import normalize as normalize_vectors
from whiten_runtime.bundle.graph_names import OUTPUT, UNWHITENED_OUTPUT, VECTORS_INPUT
from whiten_runtime.bundle.ranges import LEAST_MAGNITUDE, STEPS
from whiten_runtime.bundle.records import VectorType

OPSET = 20
MEAN, WEIGHT = "whitening.mean", "whitening.weight"
TOKENS_OUTPUT = "last_hidden_state"


Affine = tuple[ArrayLike, ArrayLike]
"""Mean [d] and weight [d, k] of y = (x - mean) W."""


def vectors_graph(width: int) -> ir.Model:
    """Return a graph whose output is its input, `vectors`, float32 [batch_size, d]."""
    kind, shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["batch_size", width])
    vectors = ir.Value(name=VECTORS_INPUT, type=kind, shape=shape)
    graph = ir.Graph([vectors], [vectors], nodes=[], opset_imports={"": OPSET}, name="whiten")
    return ir.Model(graph, ir_version=10, producer_name="whiten")


def set_head(
    model: ir.Model, affine: Affine | None, normalize: bool, both: bool = False, vectors: VectorType = "float32"
) -> None:
    """Append the head to the vector before whitening; an earlier head is replaced.

    The graph then has `sentence_embedding` [batch_size, k]. Unless it takes vectors, it also has `last_hidden_state`
    [batch_size, 1, k], the same vector, for programs that pool tokens themselves; with `both`, it also has
    `unwhitened_embedding` [batch_size, d].
    """
    unwhitened = unwhitened_value(model)
    assert unwhitened.shape is not None
    width = unwhitened.shape[1]
    assert isinstance(width, int)
    model.graph.outputs[:] = [unwhitened]
    RemoveUnusedNodesPass()(model)
    builder = GraphBuilder(model, "whiten_ending")
    finished, dimension = unwhitened, width
    if affine is not None:
        mean, weight = (np.ascontiguousarray(part, np.float32) for part in affine)
        dimension = weight.shape[1]
        centred = builder.op("Sub", finished, builder.constant(MEAN, mean))
        finished = builder.op("MatMul", centred, builder.constant(WEIGHT, weight))
    if normalize:
        finished = normalize_vectors(builder, finished)
    if vectors == "int8":
        finished = round_vectors(builder, finished)
    if unwhitened.is_graph_input():
        builder.close(describe(finished, OUTPUT, "batch_size", dimension))
        return
    unwhitened.name = UNWHITENED_OUTPUT
    describe(finished, OUTPUT, "batch_size", dimension)
    tokens = builder.op("Unsqueeze", finished, builder.integers(1))
    describe(tokens, TOKENS_OUTPUT, "batch_size", 1, dimension)
    builder.close(finished, tokens, *([unwhitened] if both else []))


def round_vectors(builder: GraphBuilder, vectors: ir.Value) -> ir.Value:
    """Append the rounding of 127 y / max |y| to whole numbers; the division comes first, so that nothing overflows."""
    largest = builder.op("ReduceMax", builder.op("Abs", vectors), builder.integers(1), keepdims=1)
    divisor = builder.op("Max", largest, builder.scalar(LEAST_MAGNITUDE))
    scaled = builder.op("Mul", builder.op("Div", vectors, divisor), builder.scalar(float(STEPS)))
    return builder.op("Round", scaled)


def unwhitened_value(model: ir.Model) -> ir.Value:
    """Return the vector before whitening, normalisation and rounding.

    It is the input of a vectors graph, else the value of that name, else the output.
    """
    if model.graph.inputs[0].name == VECTORS_INPUT:
        return model.graph.inputs[0]
    values = {value.name: value for node in model.graph for value in node.outputs}
    return values.get(UNWHITENED_OUTPUT) or values[OUTPUT]
