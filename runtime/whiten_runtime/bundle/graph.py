"""Name the inputs and outputs of a graph, list the operators that it may use, and scan a file for what it has.

The scan reads protobuf without the onnx package.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path

from whiten_runtime.bundle.files import GRAPH_BYTES, opened
from whiten_runtime.bundle.manifest import Target
from whiten_runtime.errors import BundleError

VECTORS_INPUT = "vectors"
"""The input of a graph that whitens precomputed embeddings, float32 [batch_size, d]."""

OUTPUT = "sentence_embedding"
"""The finished vectors (the output of the head), float32 [batch_size, k]."""

UNWHITENED_OUTPUT = "unwhitened_embedding"
"""The vectors before whitening and normalisation, float32 [batch_size, d]: an output of graphs with a whitening."""


_CONTRIB = "com.microsoft"

WRITTEN = frozenset(
    {
        *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape", "Conv", "Cos"),
        *("CumSum", "Div", "Equal", "Erf", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm"),
        *("Greater", "GreaterOrEqual", "Identity", "IsNaN", "LayerNormalization", "Less", "LessOrEqual", "Log"),
        *("MatMul", "MatMulInteger", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pad", "Pow", "QuantizeLinear", "Range"),
        *("Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Reshape", "Round", "Shape"),
        *("Sigmoid", "Sign", "Sin", "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Tile"),
        *("Transpose", "Unsqueeze", "Where"),
        *("If", "Scan"),  # attention of long texts
    }
)
"""Operators of the ONNX standard that exports have written: all families, poolings, modules and precisions, encoders
that were ONNX already, word vectors and vectors: the union over 1,900 bundles. `tests/parity` holds families to it."""

HARMLESS = frozenset(
    {
        *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan", "Floor", "Mod", "Xor", "IsInf"),
        *("BitCast", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "CastLike"),
        *("Celu", "Elu", "HardSigmoid", "HardSwish", "Hardmax", "LeakyRelu", "LogSoftmax", "Mish", "PRelu", "Selu"),
        *("Shrink", "Softplus", "Softsign", "SwiGLU", "Swish", "ThresholdedRelu", "Dropout"),
        *("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LpNormalization"),
        *("MeanVarianceNormalization", "RMSNormalization"),
        *("ArgMax", "ArgMin", "CumProd", "Mean", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"),
        *("ReduceProd", "ReduceSumSquare", "TopK", "Size"),
        *("Compress", "EyeLike", "NonZero", "OneHot", "ReverseSequence", "Scatter", "ScatterElements", "ScatterND"),
        *("TensorScatter", "Trilu", "Unique"),
        *("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool", "GlobalLpPool", "MaxPool", "ConvTranspose"),
        *("Einsum", "Attention", "LinearAttention", "CausalConvWithState", "RotaryEmbedding", "GRU", "LSTM", "RNN"),
        *("ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"),
    }
)
"""Further operators of the ONNX standard that text encoders of other programs may bring: functions of tensors, which
give the same result each time and end after a number of steps that the sizes of their inputs say.

Left out of the standard are: Loop, which may never end; SequenceMap; random numbers (RandomNormal, RandomUniform,
Bernoulli, Multinomial, Dropout in training); strings, images, optional values and sequences; losses; windows and
transforms of signals. Of control flow there are If and Scan, which takes as many steps as its input has items; the
graphs inside them may use the same operators (`NESTED`).
"""

FUSED_OPERATORS = frozenset(
    {
        *("Attention", "MultiHeadAttention", "GroupQueryAttention", "RotaryEmbedding", "FusedMatMul"),
        *("BiasGelu", "FastGelu", "Gelu", "QuickGelu"),
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization"),
    }
)
"""Operators of onnxruntime, besides those of the ONNX standard, that a graph for CUDA may use."""

_STANDARD = frozenset(("", name) for name in WRITTEN | HARMLESS)
_FUSED = frozenset((_CONTRIB, name) for name in FUSED_OPERATORS) | {("", "SimplifiedLayerNormalization")}

ALLOWED: dict[Target, frozenset[tuple[str, str]]] = {
    "cpu": _STANDARD | {(_CONTRIB, "MultiHeadAttention")},  # of long texts
    "cuda": _STANDARD | _FUSED,
}
"""(domain, operator) of every node that a graph may have, by target. SimplifiedLayerNormalization is onnxruntime's own,
but in the standard's domain."""


NESTED = frozenset({"If", "Scan", "If/If", "If/Scan", "If/If/Scan"})
"""Operators that may have graphs inside, from the outside to the inside: no Scan is repeated by another one, so that
the sizes of a graph's inputs bound its steps."""

Data = bytes | memoryview | mmap.mmap
Span = tuple[int, int]
"""Place of the bytes of a field: (start, end)."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def spans(data: Data, position: int, end: int) -> Iterator[tuple[int, Span]]:
    """Yield (field number, place of its bytes) of every length-delimited field of a message."""
    while position < end:
        key = data[position]
        if key < 0x80:  # nearly always; a call takes as long as the rest of this loop
            position += 1
        else:
            key, position = varint(data, position, end)
        number, wire = key >> 3, key & 7
        if not 1 <= number < 1 << 29:
            raise ValueError("no such field number")
        if wire == _BYTES:
            length = data[position] if position < end else 0x80
            if length < 0x80:
                position += 1
            else:
                length, position = varint(data, position, end)
            if position + length > end:
                raise ValueError("field runs past its message")
            yield number, (position, position + length)
            position += length
        elif wire == _VARINT:
            _, position = varint(data, position, end)
        elif wire in (_FIXED32, _FIXED64):
            position += 4 if wire == _FIXED32 else 8
        else:
            raise ValueError("unknown wire type")
    if position != end:
        raise ValueError("message is cut short")


def varint(data: Data, position: int, end: int) -> tuple[int, int]:
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


# Messages to descend into: {message: {field number: message of that field}}.
_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _TENSOR, _SPARSE, _ENTRY = range(7)
_CHILDREN: dict[int, dict[int, int]] = {
    _MODEL: {7: _GRAPH},
    _GRAPH: {1: _NODE, 5: _TENSOR, 15: _SPARSE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
    _TENSOR: {13: _ENTRY},
    _ENTRY: {},
}
_NODE_INPUT = 1
_NODE_OP_TYPE, _NODE_DOMAIN, _ENTRY_KEY, _ENTRY_VALUE = 4, 7, 1, 2
_RANDOM = "Dropout with training_mode"
_TEXTS = {
    _NODE: (_NODE_OP_TYPE, _NODE_DOMAIN),
    _ENTRY: (_ENTRY_KEY, _ENTRY_VALUE),
}
_PARTS = {
    (_MODEL, 20): "training information",
    (_MODEL, 25): "a model-local function",
    (_GRAPH, 15): "sparse weights",
    (_ATTRIBUTE, 11): "a list of graphs inside a node",
    (_ATTRIBUTE, 22): "a sparse tensor inside a node",
    (_ATTRIBUTE, 23): "a sparse tensor inside a node",
}
"""Parts of a graph that no export writes, by message and field."""


@dataclass
class GraphScan:
    operators: set[tuple[str, str]] = field(default_factory=set)
    """(domain, operator) of every node, subgraphs included; "" is the standard domain."""
    nested: set[str] = field(default_factory=set)
    """Operators that have graphs inside, from the outside to the inside, such as "If/Scan"."""
    external_files: set[str] = field(default_factory=set)
    """Locations of weights that are stored outside the file."""
    parts: set[str] = field(default_factory=set)
    """Parts that no export writes: functions, training information, sparse weights."""


def scan_graph(path: Path) -> GraphScan:
    try:
        with opened(path, GRAPH_BYTES) as file:
            return scan_open_graph(path, file)
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error}); export the model again") from None


def scan_open_graph(path: Path, file: BufferedReader) -> GraphScan:
    """Scan an open ONNX file; `path` is for errors."""
    scan = GraphScan()
    try:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            scan.nested = _visit(view, 0, len(view), _MODEL, scan)
    except (IndexError, ValueError, RecursionError):
        raise BundleError(f"{path}: not an ONNX model, or a damaged one; export the model again") from None
    if not scan.operators:
        raise BundleError(f"{path}: an ONNX model without a single node; export the model again")
    return scan


def is_beside(location: str) -> bool:
    """Return whether a location of external data is the plain name of a file in the graph's own folder."""
    return not set(location) & set("/\\:") and location not in ("", ".", "..")


def _visit(data: memoryview, start: int, end: int, message: int, scan: GraphScan) -> set[str]:
    """Scan a message, and return the operators in it that have graphs inside, such as "If/Scan"."""
    children = _CHILDREN[message]
    texts: dict[int, str] = {}
    inputs = 0
    nested: set[str] = set()
    for number, (first, last) in spans(data, start, end):
        if (part := _PARTS.get((message, number))) is not None:
            scan.parts.add(part)
        if (child := children.get(number)) is not None:
            inside = _visit(data, first, last, child, scan)
            nested |= {"", *inside} if (message, child) == (_ATTRIBUTE, _GRAPH) else inside
        elif number in _TEXTS.get(message, ()):
            texts[number] = bytes(data[first:last]).decode("utf-8")
        elif message == _NODE and number == _NODE_INPUT:
            inputs += 1
    if message == _NODE:
        domain = texts.get(_NODE_DOMAIN, "")
        name = texts.get(_NODE_OP_TYPE, "")
        scan.operators.add(("" if domain == "ai.onnx" else domain, _RANDOM if _is_random(name, inputs) else name))
        return {f"{name}/{inner}" if inner else name for inner in nested}
    if message == _ENTRY and texts.get(_ENTRY_KEY) == "location":
        scan.external_files.add(texts.get(_ENTRY_VALUE, ""))
    return nested


def _is_random(operator: str, inputs: int) -> bool:
    """Return whether a node is a Dropout with its third input, `training_mode`: it gives other results each time."""
    return operator == "Dropout" and inputs > 2


def unwanted(scan: GraphScan, target: Target) -> str | None:
    """Return what a graph has and a bundle's may not have, for a message; None if there is nothing."""
    if foreign := sorted(scan.operators - ALLOWED[target]):
        domain, name = foreign[0]
        shown = f"{domain}::{name}" if domain else name
        return f"operator {shown}, which a bundle for {target} may not use"
    if scan.parts:
        return f"{sorted(scan.parts)[0]}, which a bundle may not have"
    if deeper := sorted(scan.nested - NESTED):
        return f"a graph inside {deeper[0].replace('/', ' inside ')}, which a bundle may not have"
    return None
