"""Append a module of sentence-transformers to a graph: Dense, LayerNorm, Normalize or Truncate."""

import onnx_ir as ir

from whiten_export.graph.builder import GraphBuilder
from whiten_export.proof.modules import LEAST_NORM, Dense, LayerNorm, Module, Truncate

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
