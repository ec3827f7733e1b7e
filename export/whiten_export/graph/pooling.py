"""Pool hidden states in a graph: tokens to one vector a layer, the average of the layers, then the modules."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from whiten_export.graph.builder import ATTENDED, OWN, GraphBuilder, HiddenStates, constant, describe
from whiten_export.proof.reference import LEAST_NORM, Composition, Dense, LayerNorm, Module, Truncate
from whiten_runtime.bundle.graph_names import UNWHITENED_OUTPUT
from whiten_runtime.bundle.records import Pooling, PoolingMode, pooling_modes

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
    return normalize(builder, vectors)


def normalize(builder: GraphBuilder, vectors: ir.Value) -> ir.Value:
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

_LOWEST = float(np.finfo(np.float32).min)


def pool_graph(hidden: HiddenStates, composition: Composition, width: int, to_weigh: bool = False) -> ir.Model:
    """Append pooling, the average of layers, and modules to hidden states."""
    prompts_apart = not composition.include_prompt
    if prompts_apart:
        _attend_to_prompts(hidden.model)
    builder = GraphBuilder(hidden.model)
    pooler = _Pooler(builder, hidden, composition.pooling, prompts_apart)
    layers = [pooler(state) for state in hidden.states]
    vectors = layers[0]
    if composition.layer_weights is not None or to_weigh:
        shares = [
            builder.constant(_share(index), np.float32(share)) if to_weigh else builder.scalar(share)
            for index, share in enumerate(composition.shares)
        ]
        weighted = [builder.op("Mul", layer, share) for layer, share in zip(layers, shares, strict=True)]
        vectors = builder.op("Sum", *weighted)
    elif len(layers) > 1:
        vectors = builder.op("Mul", builder.op("Sum", *layers), builder.scalar(1 / len(layers)))
    for index, module in enumerate(composition.modules):
        vectors = append_module(builder, vectors, module, f"{OWN}modules.{index}")
    outputs = [describe(vectors, UNWHITENED_OUTPUT, "batch_size", composition.width(width))]
    if to_weigh:
        together = builder.op("Concat", *layers, axis=1)
        outputs.append(describe(together, LAYERS_OUTPUT, "batch_size", len(layers) * composition.pooled_width(width)))
    builder.close(*outputs)
    return hidden.model


def set_shares(model: ir.Model, shares: Sequence[float]) -> None:
    """Set the share of each layer in the average of a graph that was pooled to weigh, and remove its second output."""
    graph = model.graph
    for index, share in enumerate(shares):
        graph.initializers[_share(index)].const_value = ir.tensor(np.asarray(np.float32(share)), name=_share(index))
    graph.outputs[:] = [value for value in graph.outputs if value.name != LAYERS_OUTPUT]
    RemoveUnusedNodesPass()(model)


def _share(index: int) -> str:
    return f"whiten.share_{index}"


def layers_graph(hidden: HiddenStates, layers: tuple[int, ...], poolings: tuple[Pooling, ...], width: int) -> ir.Model:
    """Append several poolings of each layer to hidden states."""
    builder = GraphBuilder(hidden.model)
    vectors = []
    for pooling in poolings:
        pooler = _Pooler(builder, hidden, pooling)
        for layer, state in zip(layers, hidden.states, strict=True):
            vectors.append(describe(pooler(state), layer_value(layer, pooling), "batch_size", width))
    together = builder.op("Concat", *vectors, axis=1)
    builder.close(describe(together, LAYERS_OUTPUT, "batch_size", len(vectors) * width))
    return hidden.model


def layer_value(layer: int, pooling: Pooling) -> str:
    """Return the name of the pooled hidden state of a layer in a `layers_graph`."""
    return f"layer.{layer}.{pooling}"


class _Pooler:
    """Appends a pooling, as `reference.pool`, to hidden states, which share the weights of the tokens."""

    def __init__(
        self, builder: GraphBuilder, hidden: HiddenStates, pooling: Pooling, prompts_apart: bool = False
    ) -> None:
        self._builder, self._dense = builder, hidden.pooler
        self._weights: dict[PoolingMode, ir.Value] = {}
        for mode in pooling_modes(pooling):
            weights = hidden.weights
            self._weights[mode] = _token_weights(builder, mode, prompts_apart) if weights is None else weights

    def __call__(self, state: ir.Value) -> ir.Value:
        parts = [self._pool(mode, weights, state) for mode, weights in self._weights.items()]
        return parts[0] if len(parts) == 1 else self._builder.op("Concat", *parts, axis=1)

    def _pool(self, mode: PoolingMode, weights: ir.Value, state: ir.Value) -> ir.Value:
        if mode == "max":
            return _maximum(self._builder, state, weights)
        pooled = _sum(self._builder, state, weights)
        if mode == "pooler":
            assert self._dense is not None
            dense = append_module(self._builder, pooled, self._dense, f"{OWN}pooler")
            some = self._builder.op("ReduceSum", weights, self._builder.integers(1), keepdims=1)
            return self._builder.op("Mul", dense, some)  # zeros for a text without a token
        return pooled


def _sum(builder: GraphBuilder, state: ir.Value, weights: ir.Value) -> ir.Value:
    row = builder.op("Unsqueeze", weights, builder.integers(1))
    return builder.op("Squeeze", builder.op("MatMul", row, state), builder.integers(1))


def _maximum(builder: GraphBuilder, state: ir.Value, pooled: ir.Value) -> ir.Value:
    """Append the maximum over the tokens; zeros for a text without one."""
    token = builder.op("Unsqueeze", builder.cast(pooled, ir.DataType.BOOL), builder.integers(2))
    masked = builder.op("Where", token, state, builder.scalar(_LOWEST))
    highest = builder.op("ReduceMax", masked, builder.integers(1), keepdims=0)
    some = builder.op("ReduceMax", pooled, builder.integers(1), keepdims=1)
    return builder.op("Mul", highest, some)


def _pooled(builder: GraphBuilder, prompts_apart: bool) -> ir.Value:
    """Append 1 for each token that is pooled, else 0: float32 [batch_size, sequence_length]."""
    mask = builder.input("attention_mask")
    if prompts_apart:
        mask = builder.op("Equal", mask, builder.constant("whiten.pooled", np.int64(1)))
    return builder.cast(mask, ir.DataType.FLOAT)


def _mean(builder: GraphBuilder, pooled: ir.Value, count: ir.Value, prompts_apart: bool) -> ir.Value:
    return builder.op("Div", pooled, builder.op("Max", count, builder.scalar(1)))


def _mean_sqrt_len(builder: GraphBuilder, pooled: ir.Value, count: ir.Value, prompts_apart: bool) -> ir.Value:
    return builder.op("Div", pooled, builder.op("Sqrt", builder.op("Max", count, builder.scalar(1))))


def _weighted_mean(builder: GraphBuilder, pooled: ir.Value, count: ir.Value, prompts_apart: bool) -> ir.Value:
    axis, tokens = builder.constant(_AXIS, np.int64(1)), pooled
    if prompts_apart:
        mask = builder.op("Min", builder.input("attention_mask"), builder.constant("whiten.token", np.int64(1)))
        tokens = builder.cast(mask, ir.DataType.FLOAT)
    positions = builder.op("Mul", pooled, builder.op("CumSum", tokens, axis))
    total = builder.op("ReduceSum", positions, builder.integers(1), keepdims=1)
    return builder.op("Div", positions, builder.op("Max", total, builder.scalar(1)))


def _first(builder: GraphBuilder, pooled: ir.Value, count: ir.Value, prompts_apart: bool) -> ir.Value:
    order = builder.op("CumSum", pooled, builder.constant(_AXIS, np.int64(1)))
    return _chosen(builder, pooled, order, builder.scalar(1))


def _last(builder: GraphBuilder, pooled: ir.Value, count: ir.Value, prompts_apart: bool) -> ir.Value:
    order = builder.op("CumSum", pooled, builder.constant(_AXIS, np.int64(1)))
    return _chosen(builder, pooled, order, count)


def _chosen(builder: GraphBuilder, pooled: ir.Value, order: ir.Value, wanted: ir.Value) -> ir.Value:
    return builder.op("Mul", pooled, builder.cast(builder.op("Equal", order, wanted), ir.DataType.FLOAT))


def _first_and_mean(builder: GraphBuilder, pooled: ir.Value, count: ir.Value, prompts_apart: bool) -> ir.Value:
    first = _first(builder, pooled, count, prompts_apart)
    both = builder.op("Add", first, _mean(builder, pooled, count, prompts_apart))
    return builder.op("Mul", both, builder.scalar(0.5))


_AXIS = "whiten.axis"

_WEIGHTS: Mapping[PoolingMode, Callable[[GraphBuilder, ir.Value, ir.Value, bool], ir.Value]] = {
    "mean": _mean,
    "cls": _first,
    "last": _last,
    "cls_avg": _first_and_mean,
    "mean_sqrt_len": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "pooler": _first,
}
"""What appends the weights of the tokens that `reference.WEIGHTS` defines, from what is pooled and its count."""


def _token_weights(builder: GraphBuilder, mode: PoolingMode, prompts_apart: bool) -> ir.Value:
    """Append the weights of the tokens in float32; 1 for each where a pooling is no weighted sum."""
    pooled = _pooled(builder, prompts_apart)
    if mode not in _WEIGHTS:
        return pooled
    count = builder.op("ReduceSum", pooled, builder.integers(1), keepdims=1)
    return _WEIGHTS[mode](builder, pooled, count, prompts_apart)


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
