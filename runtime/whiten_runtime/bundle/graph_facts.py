"""Read from an ONNX file, without the onnx package, the facts that its manifest can be held against.

These are the shapes and types of the weights, the types of inputs and outputs, and the nodes that this project appends
or that read token ids. Other nodes are skipped unread. Field numbers: onnx/onnx.proto (IR version 10).
"""

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from whiten_runtime.bundle.protobuf import Data, Span, fields, varint
from whiten_runtime.errors import BundleError

FLOAT, INT8, INT64, FLOAT16 = 1, 3, 7, 10
"""Types of elements, as onnx numbers them."""

OWN = b"whiten"
"""Part of the name of every node and value that this project appends."""

IDS = "input_ids"

_SAME_IDS = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators after which token ids are still token ids."""

_MODEL_OPSET, _MODEL_GRAPH = 8, 7
_GRAPH_NODE, _GRAPH_TENSOR, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 5, 11, 12
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR, _NODE_ATTRIBUTE = 1, 2, 3, 4, 5
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME = 1, 2, 8

_COPIED = 1 << 24
"""Bytes up to which a file is copied, because bytes are read faster than a mapped file."""


@dataclass(frozen=True)
class Tensor:
    """Describes an initialiser, or an input or output of a graph.

    Attributes:
        kind: type of its elements.
        shape: its dimensions; None for one that is not a fixed number.
    """

    kind: int
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class Node:
    """Describes a node: operator, names of inputs and outputs, and its axis, which is 0 where it has none."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axis: int = 0


@dataclass(frozen=True)
class GraphFacts:
    """Holds facts of an ONNX file.

    Attributes:
        opset: version of the standard operators; None if it imports none.
        inputs: inputs by name.
        outputs: outputs by name.
        tensors: initialisers by name.
        nodes: nodes that this project appended, and those that read token ids, in their order.
    """

    opset: int | None = None
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    outputs: Mapping[str, Tensor] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()


def read_facts(path: Path) -> GraphFacts:
    """Read the facts of an ONNX file that `scan_graph` has accepted.

    Raises:
        BundleError: the file cannot be read, or is not well-formed.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _model(data[:] if len(data) <= _COPIED else data)
    except (OSError, ValueError, IndexError) as error:
        raise BundleError(f"{path}: not an ONNX model, or a damaged one ({error}); export the model again") from None


def _model(data: bytes | mmap.mmap) -> GraphFacts:
    opset, nodes = None, []
    found: dict[int, dict[str, Tensor]] = {_GRAPH_TENSOR: {}, _GRAPH_INPUT: {}, _GRAPH_OUTPUT: {}}
    for number, value in fields(data, 0, len(data)):
        if number == _MODEL_OPSET:
            imported = dict(fields(data, *_span(value)))
            if _text(data, imported.get(1)) in ("", "ai.onnx"):
                opset = _number(imported.get(2, 0))
        elif number == _MODEL_GRAPH:
            for part, inside in fields(data, *_span(value)):
                if part == _GRAPH_NODE:
                    nodes.append(_span(inside))
                elif part in found:
                    name, tensor = (_tensor if part == _GRAPH_TENSOR else _value)(data, _span(inside))
                    found[part][name] = tensor
    return GraphFacts(
        opset, found[_GRAPH_INPUT], found[_GRAPH_OUTPUT], found[_GRAPH_TENSOR], tuple(_wanted(data, nodes))
    )


def _wanted(data: bytes | mmap.mmap, spans: list[Span]) -> Iterator[Node]:
    """Yield the nodes that this project appended, and those that read token ids, as they are or in another shape."""
    names = [IDS.encode()]
    for span in spans:
        if data.find(OWN, *span) < 0 and all(data.find(name, *span) < 0 for name in names):
            continue
        node = _node(data, span)
        if node.operator in _SAME_IDS and node.inputs and node.inputs[0].encode() in names:
            names += (name.encode() for name in node.outputs)
        yield node


def _node(data: Data, span: Span) -> Node:
    texts: dict[int, list[str]] = {number: [] for number in (_NODE_INPUT, _NODE_OUTPUT, _NODE_OPERATOR)}
    axis = 0
    for number, value in fields(data, *span):
        if number in texts:
            texts[number].append(_text(data, value))
        elif number == _NODE_ATTRIBUTE:
            attribute = dict(fields(data, *_span(value)))
            if _text(data, attribute.get(1)) == "axis":
                axis = _number(attribute.get(3, 0))
    return Node("".join(texts[_NODE_OPERATOR]), tuple(texts[_NODE_INPUT]), tuple(texts[_NODE_OUTPUT]), axis)


def _tensor(data: Data, span: Span) -> tuple[str, Tensor]:
    """Return the name of an initialiser, its type, and its shape, whose numbers are packed or not."""
    name, kind = "", 0
    shape: list[int] = []
    for number, value in fields(data, *span):
        if number == _TENSOR_DIMS:
            shape += [value] if isinstance(value, int) else _numbers(data, value)
        elif number == _TENSOR_TYPE:
            kind = _number(value)
        elif number == _TENSOR_NAME:
            name = _text(data, value)
    return name, Tensor(kind, tuple(shape))


def _value(data: Data, span: Span) -> tuple[str, Tensor]:
    """Return the name, type and shape of an input or output: ValueInfoProto of a TypeProto.Tensor."""
    value = dict(fields(data, *span))
    kind = dict(fields(data, *_span(value.get(2, (0, 0)))))
    tensor = dict(fields(data, *_span(kind.get(1, (0, 0)))))
    axes = [one for number, one in fields(data, *_span(tensor.get(2, (0, 0)))) if number == 1]
    sizes = (dict(fields(data, *_span(axis))).get(1) for axis in axes)
    shape = tuple(size if isinstance(size, int) else None for size in sizes)
    return _text(data, value.get(1)), Tensor(_number(tensor.get(1, 0)), shape)


def _numbers(data: Data, span: Span) -> Iterator[int]:
    position = span[0]
    while position < span[1]:
        value, position = varint(data, position, span[1])
        yield value


def _span(value: int | Span) -> Span:
    if isinstance(value, int):
        raise ValueError("a number where a message should be")
    return value


def _number(value: int | Span) -> int:
    if not isinstance(value, int):
        raise ValueError("a message where a number should be")
    return value


def _text(data: Data, value: int | Span | None) -> str:
    return "" if value is None else bytes(data[slice(*_span(value))]).decode("utf-8")
