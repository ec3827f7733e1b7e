"""Append the head to a graph: whitening and normalisation."""

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike
from onnx_ir.passes.common import RemoveUnusedNodesPass

from whiten_export.graph.builder import GraphBuilder, describe
from whiten_export.graph.modules import normalize as normalize_vectors
from whiten_runtime.bundle.graph_names import OUTPUT, UNWHITENED_OUTPUT, VECTORS_INPUT

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


def set_head(model: ir.Model, affine: Affine | None, normalize: bool, both: bool = False) -> None:
    """Append the head to the vector before whitening; an earlier head is replaced.

    The graph then has `sentence_embedding` [batch_size, k]. Unless it takes vectors, it also has `last_hidden_state`
    [batch_size, 1, k], the same vector, for programs that pool tokens themselves; with `both`, it also has
    `unwhitened_embedding` [batch_size, d].

    Args:
        model: a graph of this project, changed in place.
        affine: the affine map, rounded to float32; None for no whitening.
        normalize: divide by the L2 norm.
        both: output the vector before whitening too.
    """
    unwhitened = unwhitened_value(model)
    assert unwhitened.shape is not None
    width = unwhitened.shape[1]
    assert isinstance(width, int)
    model.graph.outputs[:] = [unwhitened]
    RemoveUnusedNodesPass()(model)
    builder = GraphBuilder(model, "whiten_ending")
    vectors, dimension = unwhitened, width
    if affine is not None:
        mean, weight = (np.ascontiguousarray(part, np.float32) for part in affine)
        dimension = weight.shape[1]
        centred = builder.op("Sub", vectors, builder.constant(MEAN, mean))
        vectors = builder.op("MatMul", centred, builder.constant(WEIGHT, weight))
    if normalize:
        vectors = normalize_vectors(builder, vectors)
    if unwhitened.is_graph_input():
        builder.close(describe(vectors, OUTPUT, "batch_size", dimension))
        return
    unwhitened.name = UNWHITENED_OUTPUT
    describe(vectors, OUTPUT, "batch_size", dimension)
    tokens = builder.op("Unsqueeze", vectors, builder.integers(1))
    describe(tokens, TOKENS_OUTPUT, "batch_size", 1, dimension)
    builder.close(vectors, tokens, *([unwhitened] if both else []))


def unwhitened_value(model: ir.Model) -> ir.Value:
    """Return the vector before whitening and normalisation: the input of a vectors graph, else the value of that name.

    Without such a value, the output is returned.
    """
    if model.graph.inputs[0].name == VECTORS_INPUT:
        return model.graph.inputs[0]
    values = {value.name: value for node in model.graph for value in node.outputs}
    return values.get(UNWHITENED_OUTPUT) or values[OUTPUT]
