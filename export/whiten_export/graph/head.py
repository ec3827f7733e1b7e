"""What follows the hidden states in a graph: pooling, the average of layers, whitening, normalisation.

WhiteningBERT (Huang et al., EMNLP Findings 2021), section 3. The same nodes for every model, whatever it comes from.
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
        hidden: the graph, changed in place.
        pooling: of the tokens.
        width: of a hidden state, d.

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
        hidden: the graph, changed in place; not of word vectors.
        layers: which hidden state each of its states is.
        poolings: of the tokens.
        width: of a hidden state, d.

    Returns:
        The graph with the output `layer_vectors` [batch_size, poolings * layers * d], in that order, and inside it the
        values of `layer_value`.
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
    """Name of the pooled hidden state of a layer in a `layers_graph`."""
    return f"layer.{layer}.{pooling}"


def vectors_graph(width: int) -> ir.Model:
    """A graph that gives its input, `vectors`, float32 [batch_size, d]."""
    kind, shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["batch_size", width])
    vectors = ir.Value(name=VECTORS_INPUT, type=kind, shape=shape)
    graph = ir.Graph([vectors], [vectors], nodes=[], opset_imports={"": OPSET}, name="whiten")
    return ir.Model(graph, ir_version=10, producer_name="whiten")


def set_head(model: ir.Model, affine: Affine | None, normalize: bool, both: bool = False) -> None:
    """Make what follows the vector before whitening; whatever followed it is replaced.

    Args:
        model: a graph of this project, changed in place.
        affine: the map, rounded to float32; None for no whitening.
        normalize: divide by the L2 norm.
        both: give the vector before whitening too.

    The graph then has `sentence_embedding` [batch_size, k] and, unless it takes vectors, for programs that pool tokens
    themselves, `last_hidden_state` [batch_size, 1, k], which is the same; with `both`, `unwhitened_embedding`
    [batch_size, d].
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
    """The vector before whitening and normalisation: what the graph takes, the value of that name, or all it gives."""
    if model.graph.inputs[0].name == VECTORS_INPUT:
        return model.graph.inputs[0]
    values = {value.name: value for node in model.graph for value in node.outputs}
    return values.get(UNWHITENED_OUTPUT) or values[OUTPUT]


def _token_weights(builder: GraphBuilder, pooling: Pooling) -> ir.Value:
    """As `reference.token_weights`, float32."""
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
