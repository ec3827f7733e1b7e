"""Begin and end a graph: its inputs; pooling, the average of the layers, modules, whitening, normalisation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike, NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from whiten_export.graph.build import (
    ATTENDED,
    MEAN,
    OWN,
    WEIGHT,
    GraphBuilder,
    HiddenStates,
    constant,
    describe,
    describe_input,
)
from whiten_export.graph.poolings import POOLINGS, GraphTokens
from whiten_export.proof.reference import LEAST_NORM, Composition, Dense, LayerNorm, Module, Truncate
from whiten_runtime.bundle.graph import OUTPUT, UNWHITENED_OUTPUT, VECTORS_INPUT
from whiten_runtime.bundle.manifest import Pooling, PoolingMode, pooling_modes

_ACTIVATIONS = {"Tanh": "Tanh", "ReLU": "Relu", "GELU": "Gelu", "Sigmoid": "Sigmoid"}
"""Operators of ONNX by the name of the activation function."""


def append_module(builder: GraphBuilder, vectors: ir.Value, module: Module, name: str) -> ir.Value:
    """Append a module to vectors, float32 [batch_size, d]."""
    if isinstance(module, Dense):
        return _dense(builder, vectors, module, name)
    if isinstance(module, LayerNorm):
        weight, bias = builder.constant(f"{name}.weight", module.weight), builder.constant(f"{name}.bias", module.bias)
        return builder.op("LayerNormalization", vectors, weight, bias, axis=-1, epsilon=module.epsilon)
    if isinstance(module, Truncate):
        start, end, axis = (builder.integers(number) for number in (0, module.dimension, 1))
        return builder.op("Slice", vectors, start, end, axis)
    return append_norm(builder, vectors)


def append_norm(builder: GraphBuilder, vectors: ir.Value) -> ir.Value:
    """Append the division of vectors by their L2 norm."""
    squares = builder.op("ReduceSum", builder.op("Mul", vectors, vectors), builder.integers(1), keepdims=1)
    norm = builder.op("Max", builder.op("Sqrt", squares), builder.scalar(LEAST_NORM))
    return builder.op("Div", vectors, norm)


def _dense(builder: GraphBuilder, vectors: ir.Value, module: Dense, name: str) -> ir.Value:
    result = builder.op("MatMul", vectors, builder.constant(f"{name}.weight", module.weight))
    if module.bias is not None:
        result = builder.op("Add", result, builder.constant(f"{name}.bias", module.bias))
    if module.activation == "SiLU":
        result = builder.op("Mul", result, builder.op("Sigmoid", result))
    elif module.activation != "Identity":
        result = builder.op(_ACTIVATIONS[module.activation], result)
    if module.residual is not None:
        residual = builder.op("MatMul", vectors, builder.constant(f"{name}.residual", module.residual))
        result = builder.op("Add", result, residual)
    return result


LAYERS_OUTPUT = "layer_vectors"


def pool_graph(hidden: HiddenStates, composition: Composition, width: int) -> ir.Model:
    """Append pooling, the average of layers, and modules to hidden states."""
    builder, layers = _pooled_layers(hidden, composition.pooling, composition.include_prompt)
    vectors = layers[0]
    if composition.layer_weights is not None:
        shares = [builder.scalar(share) for share in composition.shares]
        weighted = [builder.op("Mul", layer, share) for layer, share in zip(layers, shares, strict=True)]
        vectors = builder.op("Sum", *weighted)
    elif len(layers) > 1:
        vectors = builder.op("Mul", builder.op("Sum", *layers), builder.scalar(1 / len(layers)))
    for index, module in enumerate(composition.modules):
        vectors = append_module(builder, vectors, module, f"{OWN}modules.{index}")
    builder.close(describe(vectors, UNWHITENED_OUTPUT, "batch_size", composition.width(width)))
    return hidden.model


def layers_graph(
    hidden: HiddenStates, layers: tuple[int, ...], pooling: Pooling, width: int, prompts_pooled: bool
) -> ir.Model:
    """Append the pooling of each layer to hidden states."""
    builder, pooled = _pooled_layers(hidden, pooling, prompts_pooled)
    vectors = [
        describe(vector, f"layer.{layer}", "batch_size", width) for layer, vector in zip(layers, pooled, strict=True)
    ]
    together = builder.op("Concat", *vectors, axis=1)
    builder.close(describe(together, LAYERS_OUTPUT, "batch_size", len(vectors) * width))
    return hidden.model


def _pooled_layers(hidden: HiddenStates, pooling: Pooling, include_prompt: bool) -> tuple[GraphBuilder, list[ir.Value]]:
    """Append the pooling of each layer, as `poolings.pool`; the layers share the weights of the tokens."""
    if not include_prompt:
        _attend_to_prompts(hidden.model)
    builder, weights = GraphBuilder(hidden.model), dict[PoolingMode, ir.Value]()
    for mode in pooling_modes(pooling):
        weights[mode] = hidden.weights or _token_weights(builder, mode, not include_prompt)
    return builder, [_pooled(builder, state, weights, hidden.pooler) for state in hidden.states]


def _pooled(
    builder: GraphBuilder, state: ir.Value, weights: Mapping[PoolingMode, ir.Value], pooler: Dense | None
) -> ir.Value:
    """Append the poolings of a state; several are concatenated."""
    parts = []
    for mode, weight in weights.items():
        pooled = POOLINGS[mode].append(builder, state, weight)
        if mode == "pooler":
            assert pooler is not None
            dense = append_module(builder, pooled, pooler, f"{OWN}pooler")
            some = builder.op("ReduceSum", weight, builder.integers(1), keepdims=1)
            pooled = builder.op("Mul", dense, some)  # zeros for a text without a token
        parts.append(pooled)
    return parts[0] if len(parts) == 1 else builder.op("Concat", *parts, axis=1)


def _token_weights(builder: GraphBuilder, mode: PoolingMode, prompts_apart: bool) -> ir.Value:
    """Append the weights of the tokens, float32 [batch_size, sequence_length]."""
    mask = builder.input("attention_mask")
    if prompts_apart:
        mask = builder.op("Equal", mask, builder.constant("whiten.pooled", np.int64(1)))
    pooled, append = builder.float32(mask), POOLINGS[mode].append_weights
    if append is None:
        return pooled
    count = builder.op("ReduceSum", pooled, builder.integers(1), keepdims=1)
    return append(GraphTokens(builder, pooled, count, prompts_apart))


def _attend_to_prompts(model: ir.Model) -> None:
    """Let the network see tokens of a prompt, whose mask is 2, like all others."""
    graph = model.graph
    mask = next(value for value in graph.inputs if value.name == "attention_mask")
    users = list(mask.uses())
    tape = Tape()
    attended = tape.op("Min", [mask, constant(graph, "whiten.token", np.int64(1))])
    attended.name = ATTENDED
    tape.nodes[0].name = "whiten_attention_mask"
    for node, index in users:
        node.replace_input_with(index, attended)
    first = next(iter(graph))
    graph.insert_before(first, tape.nodes)


OPSET = 20
TOKENS_OUTPUT = "last_hidden_state"


Affine = tuple[ArrayLike, ArrayLike]
"""Mean [d] and weight [d, k] of y = (x - mean) W."""


def vectors_graph(width: int) -> ir.Model:
    """Return a graph whose output is its input, `vectors`, float32 [batch_size, d]."""
    kind, shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["batch_size", width])
    vectors = ir.Value(name=VECTORS_INPUT, type=kind, shape=shape)
    graph = ir.Graph([vectors], [vectors], nodes=[], opset_imports={"": OPSET}, name="whiten")
    return ir.Model(graph, ir_version=10, producer_name="whiten")


def set_head(model: ir.Model, affine: Affine | None, normalize: bool) -> None:
    """Append the head to the vector before whitening; an earlier head is replaced.

    The graph then has `sentence_embedding` [batch_size, k]. Unless it takes vectors, it also has `last_hidden_state`
    [batch_size, 1, k], the same vector, for programs that pool tokens themselves. With a whitening or
    a normalisation, it also has `unwhitened_embedding` [batch_size, d].
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
        finished = append_norm(builder, finished)
    if unwhitened.is_graph_input():
        builder.close(describe(finished, OUTPUT, "batch_size", dimension))
        return
    unwhitened.name = UNWHITENED_OUTPUT
    describe(finished, OUTPUT, "batch_size", dimension)
    tokens = builder.op("Unsqueeze", finished, builder.integers(1))
    describe(tokens, TOKENS_OUTPUT, "batch_size", 1, dimension)
    builder.close(finished, tokens, *([unwhitened] if affine is not None or normalize else []))


def unwhitened_value(model: ir.Model) -> ir.Value:
    """Return the vector before the head: the input of a vectors graph, else the value of that name, else the output."""
    if model.graph.inputs[0].name == VECTORS_INPUT:
        return model.graph.inputs[0]
    values = {value.name: value for node in model.graph for value in node.outputs}
    return values.get(UNWHITENED_OUTPUT) or values[OUTPUT]


INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "position_ids"})
"""Inputs that a graph may have: the whole text is segment 0, and its tokens are counted from 0."""


def feed_of(
    names: Sequence[str], input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Return the inputs that a graph takes, int64 [batch_size, sequence_length] each."""
    feed = {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "token_type_ids": np.zeros_like(input_ids),
        "position_ids": np.maximum(np.cumsum(attention_mask, axis=1) - 1, 0),
    }
    return {name: feed[name] for name in names}


def replace_inputs(model: ir.Model) -> None:
    """Compute every other input of a graph inside it, as `feed_of` does; its inputs are then token ids and mask."""
    graph = model.graph
    inputs = {str(value.name): value for value in graph.inputs}
    tape = Tape()
    ids, mask = (inputs.get(name) or ir.Value(name=name) for name in ("input_ids", "attention_mask"))
    for name, value in inputs.items():
        if name == "token_type_ids":
            derived = tape.op("Sub", [ids, ids])
        elif name == "position_ids":
            axis, one = constant(graph, "whiten.axis", np.int64(1)), constant(graph, "whiten.first", np.int64(1))
            zero = constant(graph, "whiten.zero", np.int64(0))
            derived = tape.op("Max", [tape.op("Sub", [tape.op("CumSum", [mask, axis]), one]), zero])
        else:
            continue
        ir.convenience.replace_all_uses_with(value, derived)
    _put_first(graph, tape)
    graph.inputs[:] = [ids, mask]


def map_surplus(model: ir.Model, surplus_from: int, unknown_token_id: int) -> None:
    """Replace ids from `surplus_from` on by that of the unknown token."""
    graph = model.graph
    ids = next(value for value in graph.inputs if value.name == "input_ids")
    first = constant(graph, "whiten.surplus_from", np.int64(surplus_from))
    unknown = constant(graph, "whiten.unknown", np.int64(unknown_token_id))
    users = list(ids.uses())
    tape = Tape()
    mapped = tape.op("Where", [tape.op("Less", [ids, first]), ids, unknown])
    for node, index in users:
        node.replace_input_with(index, mapped)
    _put_first(graph, tape)


def _put_first(graph: ir.Graph, tape: Tape) -> None:
    for index, node in enumerate(tape.nodes):
        node.name = f"whiten_input_{index}"
        for output in node.outputs:
            output.name = output.name or f"whiten.input_{index}"
    if first := next(iter(graph), None):
        graph.insert_before(first, tape.nodes)


def look_up(table: NDArray[np.float32], prefix: str) -> tuple[GraphBuilder, ir.Value]:
    """Begin a graph that looks up the row of each token id in a table [n, d]; return its builder and the rows."""
    ids, mask = (describe_input(ir.Value(name=name)) for name in ("input_ids", "attention_mask"))
    graph = ir.Graph([ids, mask], [], nodes=[], opset_imports={"": OPSET}, name="whiten")
    builder = GraphBuilder(ir.Model(graph, ir_version=10, producer_name="whiten"), prefix)
    state = builder.op("Gather", builder.constant(f"{prefix}.vectors", table), ids)
    return builder, describe(state, "hidden_states.0", "batch_size", "sequence_length", table.shape[1])


def table_config(table: NDArray[np.float32]) -> Mapping[str, Any]:
    """Return the content of `config.json` for a table [n, d]."""
    return {
        "model_type": "bert",  # other programs must find an architecture that they know; they do not use it
        "architectures": ["BertModel"],
        "hidden_size": table.shape[1],
        "num_hidden_layers": 0,
        "vocab_size": len(table),
    }
