"""Append to the hidden states of a graph: pooling, the average of layers, and the head (whitening, normalisation).

WhiteningBERT (Huang et al., EMNLP Findings 2021), section 3. The nodes are the same for every kind of model.
"""

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike
from onnx_ir.passes.common import RemoveUnusedNodesPass

from whiten_export.graph.builder import GraphBuilder, HiddenStates, describe
from whiten_export.proof.reference import LEAST_NORM
from whiten_runtime.bundle.graph_names import OUTPUT, UNWHITENED_OUTPUT, VECTORS_INPUT
from whiten_runtime.bundle.manifest import Pooling

OPSET = 20
MEAN, WEIGHT = "whitening.mean", "whitening.weight"
TOKENS_OUTPUT = "last_hidden_state"
LAYERS_OUTPUT = "layer_vectors"


Affine = tuple[ArrayLike, ArrayLike]
"""Mean [d] and weight [d, k] of y = (x - mean) W."""


def pool_graph(hidden: HiddenStates, pooling: Pooling, width: int) -> ir.Model:
    """Append pooling and the average of layers to hidden states.

    Args:
        hidden: graph with hidden states, changed in place.
        pooling: pooling over the tokens.
        width: size of a hidden state, d.

    Returns:
        The graph with the output `unwhitened_embedding` [batch_size, d].
    """
    builder = GraphBuilder(hidden.model)
    shares = _token_weights(builder, pooling) if hidden.weights is None else hidden.weights
    vectors = _pool(builder, hidden.states, shares)
    builder.close(describe(vectors, UNWHITENED_OUTPUT, "batch_size", width))
    return hidden.model


def layers_graph(hidden: HiddenStates, layers: tuple[int, ...], poolings: tuple[Pooling, ...], width: int) -> ir.Model:
    """Append several poolings of each layer to hidden states.

    Args:
        hidden: graph with hidden states, changed in place; not of word vectors.
        layers: layer index of each of its hidden states.
        poolings: poolings over the tokens.
        width: size of a hidden state, d.

    Returns:
        The graph with the output `layer_vectors` [batch_size, poolings * layers * d], in that order, which concatenates
        the values of `layer_value`.
    """
    builder = GraphBuilder(hidden.model)
    vectors = []
    for pooling in poolings:
        shares = _token_weights(builder, pooling)
        for layer, state in zip(layers, hidden.states, strict=True):
            name = layer_value(layer, pooling)
            vectors.append(describe(_pool(builder, (state,), shares), name, "batch_size", width))
    together = builder.op("Concat", *vectors, axis=1)
    builder.close(describe(together, LAYERS_OUTPUT, "batch_size", len(vectors) * width))
    return hidden.model


def layer_value(layer: int, pooling: Pooling) -> str:
    """Return the name of the pooled hidden state of a layer in a `layers_graph`."""
    return f"layer.{layer}.{pooling}"


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
        squares = builder.op("ReduceSum", builder.op("Mul", vectors, vectors), builder.integers(1), keepdims=1)
        norm = builder.op("Max", builder.op("Sqrt", squares), builder.scalar(LEAST_NORM))
        vectors = builder.op("Div", vectors, norm)
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


def _token_weights(builder: GraphBuilder, pooling: Pooling) -> ir.Value:
    """Append `reference.token_weights` in float32."""
    shares = builder.cast(builder.input("attention_mask"), ir.DataType.FLOAT)
    count = builder.op("ReduceSum", shares, builder.integers(1), keepdims=1)
    if pooling == "mean":
        return builder.op("Div", shares, builder.op("Max", count, builder.scalar(1)))
    order = builder.op("CumSum", shares, builder.constant("whiten.axis", np.int64(1)))
    chosen = builder.op("Equal", order, builder.scalar(1) if pooling == "cls" else count)
    return builder.op("Mul", shares, builder.cast(chosen, ir.DataType.FLOAT))


def _pool(builder: GraphBuilder, states: tuple[ir.Value, ...], shares: ir.Value) -> ir.Value:
    """Append `reference.pool`, float32 [batch_size, d]."""
    row = builder.op("Unsqueeze", shares, builder.integers(1))
    pooled = [builder.op("Squeeze", builder.op("MatMul", row, state), builder.integers(1)) for state in states]
    if len(pooled) == 1:
        return pooled[0]
    return builder.op("Mul", builder.op("Sum", *pooled), builder.scalar(1 / len(pooled)))
