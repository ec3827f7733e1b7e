"""Name the inputs and outputs of a graph, and list the operators that it may use, for each target."""

from whiten_runtime.bundle.graph_scan import GraphScan
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.records import Target

VECTORS_INPUT = "vectors"
"""The input of a graph that whitens precomputed embeddings, float32 [batch_size, d]."""

OUTPUT = "sentence_embedding"
"""The finished vectors (the output of the head), float32 [batch_size, k]."""

UNWHITENED_OUTPUT = "unwhitened_embedding"
"""The vectors before whitening, normalisation and rounding, float32 [batch_size, d]."""


def unwhitened_output(manifest: Manifest) -> str:
    """Return the name of the value that holds the vectors before whitening, normalisation and rounding."""
    changed = manifest.whitening is not None or manifest.normalize or manifest.vectors != "float32"
    return UNWHITENED_OUTPUT if changed else OUTPUT


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

Left out of the standard are: control flow (If, Loop, Scan, SequenceMap), which may never end; random numbers
(RandomNormal, RandomUniform, Bernoulli, Multinomial, Dropout in training); strings, images, optional values and
sequences; losses; windows and transforms of signals.
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

ALLOWED: dict[Target, frozenset[tuple[str, str]]] = {"cpu": _STANDARD, "cuda": _STANDARD | _FUSED}
"""(domain, operator) of every node that a graph may have, by target. SimplifiedLayerNormalization is onnxruntime's own,
but in the standard's domain."""


def unwanted(scan: GraphScan, target: Target) -> str | None:
    """Return what a graph has and a bundle's may not have, for a message; None if there is nothing."""
    if foreign := sorted(scan.operators - ALLOWED[target]):
        domain, name = foreign[0]
        shown = f"{domain}::{name}" if domain else name
        return f"operator {shown}, which a bundle for {target} may not use"
    if scan.functions:
        return f"{scan.functions} model-local function(s), which a bundle may not have"
    if scan.parts:
        return f"{sorted(scan.parts)[0]}, which a bundle may not have"
    return None
