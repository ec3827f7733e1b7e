"""Give a graph that pools by the mean a third input: the weights of the tokens, for several vectors from one text.

The graph of a bundle is edited in memory, as protobuf and without the onnx package; the bundle's file stays as it is.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from whiten_runtime.bundle.graph import OUTPUT, Span, spans
from whiten_runtime.errors import BundleError

_OF_POOLING = "whiten.value_"
"""Prefix of the names of values that an export computes from the hidden states, up to the head."""

# Numbers of fields, by message.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_SHAPES = 1, 11, 12, 13
_NODE_INPUT, _NODE_OUTPUT, _NODE_OP_TYPE = 1, 2, 4
_FLOAT, _INT64 = 1, 7


class _Node(NamedTuple):
    operator: str
    inputs: list[str]
    outputs: list[str]
    place: Span


def with_token_weights(model: bytes) -> bytes:
    """Return a model that takes the weights of the tokens as its third input, and has only the finished vectors.

    The mean of a text's tokens is a product: weights, 1 / n for each of n tokens, times hidden states. The new graph
    takes weights in place of the node that computes them, so that one text gives a vector for each row of weights.

    Args:
        model: content of `onnx/model.onnx`.

    Returns:
        A model with the inputs `input_ids` and `attention_mask`, int64 [1, sequence_length], and weights, float32
        [passages, sequence_length]; its output is `sentence_embedding`, float32 [passages, k].

    Raises:
        BundleError: the graph has no such node.
    """
    start, end = next(place for number, place in spans(model, 0, len(model)) if number == _MODEL_GRAPH)
    weights = _weights_node(list(_nodes(model, start, end)))
    described = (
        _GRAPH_INPUT,
        _GRAPH_OUTPUT,
        _GRAPH_SHAPES,
    )  # shapes in which weights and texts have one number of rows
    fields = [
        _field(number, model[slice(*place)])
        for number, place in spans(model, start, end)
        if number not in described and place != weights.place
    ]
    inputs = [
        _value("input_ids", _INT64, 1, "sequence_length"),
        _value("attention_mask", _INT64, 1, "sequence_length"),
        _value(weights.outputs[0], _FLOAT, "passages", "sequence_length"),
    ]
    output = _field(_GRAPH_OUTPUT, _value(OUTPUT, _FLOAT, "passages", "dimension"))
    graph = b"".join([*fields, *(_field(_GRAPH_INPUT, value) for value in inputs), output])
    head = start - len(_varint(end - start)) - 1
    return model[:head] + _field(_MODEL_GRAPH, graph) + model[end:]


def _nodes(model: bytes, start: int, end: int) -> Iterator[_Node]:
    for number, place in spans(model, start, end):
        if number != _GRAPH_NODE:
            continue
        texts: dict[int, list[str]] = {_NODE_INPUT: [], _NODE_OUTPUT: [], _NODE_OP_TYPE: []}
        for part, (first, last) in spans(model, *place):
            if part in texts:
                texts[part].append(model[first:last].decode("utf-8"))
        yield _Node(texts[_NODE_OP_TYPE][0], texts[_NODE_INPUT], texts[_NODE_OUTPUT], place)


def _weights_node(nodes: Sequence[_Node]) -> _Node:
    """Return the node that divides 1 for each token by their number: its rows are multiplied by hidden states."""
    rows = {node.inputs[0] for node in nodes if node.operator == "Unsqueeze"}
    weights = [
        node
        for node in nodes
        if node.operator == "Div" and node.outputs[0] in rows and node.outputs[0].startswith(_OF_POOLING)
    ]
    if len(weights) != 1:
        raise BundleError(
            "the graph does not compute the mean of its tokens as whiten-export writes it for networks; embed each "
            "passage alone"
        )
    return weights[0]


def _value(name: str, kind: int, *shape: int | str) -> bytes:
    sizes = [_varint(1 << 3) + _varint(size) if isinstance(size, int) else _field(2, size.encode()) for size in shape]
    tensor = _varint(1 << 3) + _varint(kind) + _field(2, b"".join(_field(1, size) for size in sizes))
    return _field(1, name.encode()) + _field(2, _field(1, tensor))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
