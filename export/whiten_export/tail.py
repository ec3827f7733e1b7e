"""What follows the hidden states in a graph: pooling, the average of layers, whitening, normalisation.

WhiteningBERT (Huang et al., EMNLP Findings 2021), section 3. The same nodes for every model, whatever it comes from.
"""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from whiten_export.building import GraphBuilder, describe
from whiten_export.reference import LEAST_NORM
from whiten_export.sources.base import HiddenStates
from whiten_runtime.engine import OUTPUT, UNWHITENED_OUTPUT
from whiten_runtime.manifest import Pooling
from whiten_runtime.vectors import VECTORS_INPUT

OPSET = 20
MEAN, WEIGHT = "whitening.mean", "whitening.weight"


def finish_graph(
    hidden: HiddenStates, pooling: Pooling, width: int, dimension: int | None, normalize: bool
) -> ir.Model:
    """Append everything that turns hidden states into sentence vectors.

    Args:
        hidden: the graph, changed in place.
        pooling: of the tokens.
        width: of a hidden state, d.
        dimension: of the whitened vectors, k; None for no whitening. The map is zeros until `set_affine` is called.
        normalize: divide by the L2 norm.

    Returns:
        The graph with `sentence_embedding` [batch_size, k] and, for programs that pool tokens themselves,
        `last_hidden_state` [batch_size, 1, k], which is the same.
    """
    builder = GraphBuilder(hidden.model)
    shares = _token_shares(builder, pooling) if hidden.weights is None else hidden.weights
    vectors = _pool(builder, hidden.states, shares)
    if dimension is not None:
        describe(vectors, UNWHITENED_OUTPUT, "batch_size", width)
    vectors = _ending(builder, vectors, width, dimension, normalize)
    tokens = builder.op("Unsqueeze", vectors, builder.integers(1))
    builder.close(vectors, describe(tokens, "last_hidden_state", "batch_size", 1, dimension or width))
    return hidden.model


def affine_graph(width: int, dimension: int, normalize: bool) -> ir.Model:
    """A graph of the affine map alone, from `vectors`, float32 [batch_size, d], to `sentence_embedding`."""
    kind, shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["batch_size", width])
    vectors = ir.Value(name=VECTORS_INPUT, type=kind, shape=shape)
    graph = ir.Graph([vectors], [], nodes=[], opset_imports={"": OPSET}, name="whiten")
    model = ir.Model(graph, ir_version=10, producer_name="whiten")
    builder = GraphBuilder(model)
    builder.close(_ending(builder, vectors, width, dimension, normalize))
    return model


def set_affine(model: ir.Model, mean: NDArray[np.floating], weight: NDArray[np.floating]) -> None:
    """Replace the map, mean [d] and weight [d, k], rounded to float32.

    Raises:
        ValueError: the shapes are not those of the graph.
    """
    for name, value in ((MEAN, mean), (WEIGHT, weight)):
        initializer = model.graph.initializers[name]
        if initializer.shape != ir.Shape(value.shape):
            raise ValueError(f"{name} has shape {initializer.shape}, not {value.shape}")
        initializer.const_value = ir.tensor(np.ascontiguousarray(value, np.float32), name=name)


def unwhitened_value(model: ir.Model) -> ir.Value:
    """The vector before whitening: the input of the Sub that subtracts the mean."""
    ((node, index),) = model.graph.initializers[MEAN].uses()
    value = node.inputs[1 - index]
    assert value is not None
    return value


def _token_shares(builder: GraphBuilder, pooling: Pooling) -> ir.Value:
    """As `reference.token_shares`, float32."""
    shares = builder.cast(builder.input("attention_mask"), ir.DataType.FLOAT)
    count = builder.op("ReduceSum", shares, builder.integers(1), keepdims=1)
    if pooling == "mean":
        return builder.op("Div", shares, builder.op("Max", count, builder.scalar(1)))
    order = builder.op("CumSum", shares, builder.constant("whiten.axis", np.int64(1)))
    chosen = builder.op("Equal", order, builder.scalar(1) if pooling == "cls" else count)
    return builder.op("Mul", shares, builder.cast(chosen, ir.DataType.FLOAT))


def _pool(builder: GraphBuilder, states: tuple[ir.Value, ...], shares: ir.Value) -> ir.Value:
    """As `reference.pool`, float32 [batch_size, d]."""
    row = builder.op("Unsqueeze", shares, builder.integers(1))
    pooled = [builder.op("Squeeze", builder.op("MatMul", row, state), builder.integers(1)) for state in states]
    if len(pooled) == 1:
        return pooled[0]
    return builder.op("Mul", builder.op("Sum", *pooled), builder.scalar(1 / len(pooled)))


def _ending(builder: GraphBuilder, vectors: ir.Value, width: int, dimension: int | None, normalize: bool) -> ir.Value:
    """As `reference.Ending`: Sub, MatMul and the division by the norm."""
    if dimension is not None:
        centred = builder.op("Sub", vectors, builder.constant(MEAN, np.zeros(width, np.float32)))
        vectors = builder.op("MatMul", centred, builder.constant(WEIGHT, np.zeros((width, dimension), np.float32)))
    if normalize:
        squares = builder.op("ReduceSum", builder.op("Mul", vectors, vectors), builder.integers(1), keepdims=1)
        norm = builder.op("Max", builder.op("Sqrt", squares), builder.scalar(LEAST_NORM))
        vectors = builder.op("Div", vectors, norm)
    return describe(vectors, OUTPUT, "batch_size", dimension or width)
