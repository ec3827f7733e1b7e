"""Scan an ONNX graph for its operators and external files, without the onnx package.

Only the few protobuf fields that matter are visited; weights are skipped without being copied.
Field numbers: onnx/onnx.proto (IR version 10).
"""

import mmap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from whiten_runtime.errors import BundleError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# Messages to descend into: {message: {field number: message of that field}}.
_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _TENSOR, _SPARSE, _ENTRY, _OUTPUT = range(8)
_CHILDREN: dict[int, dict[int, int]] = {
    _MODEL: {7: _GRAPH},
    _GRAPH: {1: _NODE, 5: _TENSOR, 12: _OUTPUT, 15: _SPARSE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
    _TENSOR: {13: _ENTRY},
    _ENTRY: {},
    _OUTPUT: {},
}
_MODEL_GRAPH, _MODEL_FUNCTIONS, _GRAPH_OUTPUT = 7, 25, 12
_NODE_OP_TYPE, _NODE_DOMAIN, _ENTRY_KEY, _ENTRY_VALUE, _OUTPUT_NAME, _OUTPUT_TYPE = 4, 7, 1, 2, 1, 2
_VECTORS = b"\x0a\x02\x08\x01"  # TypeProto of a float32 tensor of unknown shape
_TEXTS = {
    _NODE: (_NODE_OP_TYPE, _NODE_DOMAIN),
    _ENTRY: (_ENTRY_KEY, _ENTRY_VALUE),
    _OUTPUT: (_OUTPUT_NAME,),
}
_MAX_DEPTH, _MAX_LENGTH = 64, 2**31 - 1


@dataclass
class GraphScan:
    """Holds the operators, external files, functions and outputs of an ONNX file."""

    operators: set[tuple[str, str]] = field(default_factory=set)
    """(domain, operator) of every node, subgraphs included; "" is the standard domain."""
    external_files: set[str] = field(default_factory=set)
    """Locations of weights that are stored outside the file."""
    functions: int = 0
    """Number of model-local functions."""
    outputs: set[str] = field(default_factory=set)
    """Names of the outputs, including those of subgraphs."""


def scan_graph(path: Path) -> GraphScan:
    """Scan an ONNX file.

    Raises:
        BundleError: the file is missing, empty or not a well-formed ONNX protobuf.
    """
    scan = GraphScan()
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
            data = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise BundleError(f"{path}: cannot be read ({error}); export the model again") from None
        view = stack.enter_context(memoryview(data))
        try:
            _visit(view, 0, len(view), _MODEL, scan, 0)
        except (IndexError, ValueError):
            raise BundleError(f"{path}: not an ONNX model, or a damaged one; export the model again") from None
    if not scan.operators:
        raise BundleError(f"{path}: an ONNX model without a single node; export the model again")
    return scan


def is_beside(location: str) -> bool:
    """Return whether a location of external data is the plain name of a file in the graph's own folder."""
    return "/" not in location and "\\" not in location and location not in ("", ".", "..")


def with_output(path: Path, value: str) -> bytes:
    """Return the content of an ONNX file, with a float32 value of its graph as one more output.

    Two concatenated protobuf messages are read as one, with the repeated fields of both.
    """
    described = _field(_OUTPUT_NAME, value.encode()) + _field(_OUTPUT_TYPE, _VECTORS)
    return path.read_bytes() + _field(_MODEL_GRAPH, _field(_GRAPH_OUTPUT, described))


def with_locations(content: bytes, locations: Mapping[str, str]) -> bytes:
    """Return the content of an ONNX file whose weights are stored in files of other names.

    Args:
        content: content of an ONNX file.
        locations: new name of each file of weights, by its name in the graph.
    """
    if not locations:
        return content
    renamed = {old.encode(): new.encode() for old, new in locations.items()}
    return _renamed(memoryview(content), 0, len(content), _MODEL, renamed)


def _renamed(data: memoryview, start: int, end: int, message: int, names: Mapping[bytes, bytes]) -> bytes:
    """Return a message with other locations of weights in it; a location is the value of an entry of its key."""
    parts, done, is_location = [], start, False
    for number, (first, last) in _fields(data, start, end):
        child = _CHILDREN[message].get(number)
        if message == _ENTRY and number == _ENTRY_KEY:
            is_location = bytes(data[first:last]) == b"location"
        if child is not None:
            inside = _renamed(data, first, last, child, names)
        elif message == _ENTRY and number == _ENTRY_VALUE and is_location:
            inside = names.get(bytes(data[first:last]), bytes(data[first:last]))
        else:
            continue
        tag = first - len(_varint_bytes(last - first)) - len(_varint_bytes(number << 3))
        parts += [bytes(data[done:tag]), _field(number, inside)]
        done = last
    return b"".join([*parts, bytes(data[done:end])])


def product_graph() -> bytes:
    """Return the content of an ONNX file with one node: y = x x, float32 [2, 2]."""
    x, y = b"x", b"y"
    shape = _field(1, b"\x08\x02") * 2
    tensor = _field(1, b"\x08\x01" + _field(2, shape))
    values = [_field(number, _field(1, name) + _field(2, tensor)) for number, name in ((11, x), (12, y))]
    node = _field(1, x) * 2 + _field(2, y) + _field(_NODE_OP_TYPE, b"MatMul")
    graph = _field(1, node) + _field(2, b"product") + b"".join(values)
    return b"\x08\x0a" + _field(_MODEL_GRAPH, graph) + _field(8, b"\x10\x14")


def _field(number: int, content: bytes) -> bytes:
    """Encode a length-delimited field."""
    return _varint_bytes(number << 3 | _BYTES) + _varint_bytes(len(content)) + content


def _varint_bytes(value: int) -> bytes:
    groups = []
    while value >= 1 << 7:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _visit(data: memoryview, start: int, end: int, message: int, scan: GraphScan, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    children = _CHILDREN[message]
    texts: dict[int, str] = {}
    for number, (first, last) in _fields(data, start, end):
        if (child := children.get(number)) is not None:
            _visit(data, first, last, child, scan, depth + 1)
        elif message == _MODEL and number == _MODEL_FUNCTIONS:
            scan.functions += 1
        elif number in _TEXTS.get(message, ()):
            texts[number] = bytes(data[first:last]).decode("utf-8")
    if message == _NODE:
        domain = texts.get(_NODE_DOMAIN, "")
        scan.operators.add(("" if domain == "ai.onnx" else domain, texts.get(_NODE_OP_TYPE, "")))
    elif message == _ENTRY and texts.get(_ENTRY_KEY) == "location":
        scan.external_files.add(texts.get(_ENTRY_VALUE, ""))
    elif message == _OUTPUT:
        scan.outputs.add(texts.get(_OUTPUT_NAME, ""))


def _fields(data: memoryview, position: int, end: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield (field number, (start, end)) of every length-delimited field in data[position:end]."""
    while position < end:
        key, position = _varint(data, position, end)
        number, wire = key >> 3, key & 7
        if not 1 <= number < 1 << 29:
            raise ValueError("no such field number")
        if wire == _VARINT:
            _, position = _varint(data, position, end)
        elif wire == _BYTES:
            length, position = _varint(data, position, end)
            if length > _MAX_LENGTH or position + length > end:
                raise ValueError("field runs past its message")
            yield number, (position, position + length)
            position += length
        elif wire in (_FIXED32, _FIXED64):
            position += 4 if wire == _FIXED32 else 8
        else:
            raise ValueError("unknown wire type")
    if position != end:
        raise ValueError("message is cut short")


def _varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """Read a varint in its shortest form.

    Longer forms are refused because parsers disagree about them: onnxruntime's parser drops bits that a longer form
    carries, and so would read as an allowed field what this function reads as an unknown one.
    """
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise ValueError("varint is longer than it need be")
            return value, position
        shift += 7
    raise ValueError("unterminated varint")
