"""Fuse operators for CUDA: attention, normalisation and activation as one kernel each, and padding given by lengths.

onnxscript finds the patterns of normalisations, activations and rotary embeddings. Attentions are marked. Attention of
ONNX's opset 24 takes the lengths of texts in place of a mask. CUDA computes it with flash attention (float16, compute
capability 8.0 or more) or memory-efficient attention (all else), whatever the shape, and never holds a matrix of
scores. onnxruntime's own Attention, with lengths, needs cuDNN on an H100, which makes a plan for each new shape
(50 ms), or holds the scores. An attention that hides more than padding is onnxruntime's MultiHeadAttention with a mask.

Two of the three biases of queries, keys and values cost nothing then. That of the keys adds one number to all scores of
a query, which softmax takes away again. That of the values is added to every mean of values, as weights sum to 1: it
goes into the bias after the next matrix product.
"""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.tape import Tape

from whiten_export.graph.attention import (
    CONTRIB,
    HEADS_FIRST,
    Attention,
    Window,
    attentions,
    finish,
    merged_operands,
    only_user,
    padding_row,
    replace_node,
    whole_bias,
)
from whiten_export.graph.build import Nodes, constant, floats, split_gemms
from whiten_runtime.errors import needing

_Bias = NDArray[np.float32]

_OPSET, _IR_VERSION = 24, 11
"""Version of the standard operators whose Attention takes lengths (`nonpad_kv_seqlen`), and of the format with it."""


def fuse_for_cuda(model: ir.Model) -> int:
    """Fuse the operators for which onnxruntime has CUDA kernels, and return the number of attentions among them.

    They are (SkipLayer)Normalization, Attention, (Bias)Gelu. EmbedLayerNormalization is not: its kernel takes the mean
    in the type of its input, and waits for the GPU each run.
    """
    optimize_for_ort = fusions()
    outputs = [(value.name, value.type, value.shape) for value in model.graph.outputs]
    split_gemms(model)
    optimize_for_ort(model)
    for value, (name, kind, shape) in zip(model.graph.outputs, outputs, strict=True):
        value.name, value.type, value.shape = name, kind, shape
    _give_positions_to_each_text(model)
    _fuse_attentions(model)
    _drop_unused_sums(model)
    return sum(node.op_type in ("Attention", "MultiHeadAttention") for node in model.graph)


def fusions() -> Callable[[ir.Model], object]:
    """Return onnxscript's fusions for onnxruntime."""
    with needing("export"):
        from onnxscript.rewriter.ort_fusions import optimize_for_ort
    return optimize_for_ort


def _give_positions_to_each_text(model: ir.Model) -> None:
    """Repeat the positions of rotary embeddings for each text; transformers up to 5.17 traces one for all."""
    ids = next(value for value in model.graph.inputs if value.name == "input_ids")
    spread: dict[ir.Value, ir.Value] = {}
    for node in list(model.graph):
        if node.domain != CONTRIB or node.op_type != "RotaryEmbedding":
            continue
        positions = node.inputs[1]
        assert positions is not None
        if positions.shape is None or len(positions.shape) != 2 or positions.shape[0] != 1:
            continue
        if positions not in spread:
            tape = Tape()
            spread[positions] = tape.op("Expand", [positions, tape.op("Shape", [ids])])
            spread[positions].type = positions.type
            model.graph.insert_before(node, tape.nodes)
        node.replace_input_with(1, spread[positions])


def _drop_unused_sums(model: ir.Model) -> None:
    """Remove unused optional outputs of normalisations, such as the sum, which CUDA would write even if unread."""
    for node in model.graph:
        if "LayerNormalization" in node.op_type:
            used = [index for index, value in enumerate(node.outputs) if list(value.uses()) or value.is_graph_output()]
            node.resize_outputs(max(used, default=0) + 1)


def _fuse_attentions(model: ir.Model) -> None:
    """Turn the marked attentions into fused ones: those that hide only padding take the lengths of texts."""
    marked = attentions(model)
    start = Nodes(model.graph, "attention.start")
    ids = next(value for value in model.graph.inputs if value.name == "input_ids")
    hidden: dict[tuple[ir.Value, Window], ir.Value] = {}  # lengths, or what is added to the scores
    for attention in marked:
        padding, window = attention.padding, attention.window
        if (padding, window) not in hidden:
            if window.all:
                hidden[padding, window] = _lengths(start, padding)
            else:
                hidden[padding, window] = whole_bias(start, ids, window, padding_row(start, padding))
    model.graph.extend(start.close())
    for index, attention in enumerate(marked):
        nodes, mask = Nodes(model.graph, f"attention.{index}"), hidden[attention.padding, attention.window]
        if attention.window.all:
            context = _by_lengths(model, nodes, attention, mask)
        else:
            context = _by_bias(nodes, attention, mask)
        _replace(model, attention, nodes, context)
    model.graph.opset_imports.setdefault(CONTRIB, 1)
    if any(attention.window.all for attention in marked):
        model.graph.opset_imports[""] = max(_OPSET, model.graph.opset_imports[""])
        model.ir_version = max(_IR_VERSION, model.ir_version)
    finish(model)


def _lengths(nodes: Nodes, padding: ir.Value) -> ir.Value:
    """Add the number of tokens of each text, int64 [batch_size]; texts are padded on the right."""
    # Summed in float32: for integers, onnxruntime calls cuDNN, which few other operators need.
    numbers = floats(nodes.op("Cast", padding, to=ir.DataType.FLOAT.value))
    total = floats(nodes.op("ReduceSum", numbers, nodes.integers(1), keepdims=0))
    # Attention without any token is NaN; pooling gives such a text the zero vector.
    return nodes.op("Cast", floats(nodes.op("Max", total, nodes.number(1.0))), to=ir.DataType.INT64.value)


def _by_lengths(model: ir.Model, nodes: Nodes, attention: Attention, lengths: ir.Value) -> ir.Value:
    """Add ONNX's Attention for one that hides only padding: [batch, sequence, heads * width]."""
    queries, keys, values = (_without_bias(value) for value in merged_operands(nodes, attention))
    outlet = _outlet(attention)
    folded = values.bias is None or (outlet is not None and _fold_into_next(model, outlet, values.bias))

    def biased(part: _Part) -> ir.Value:
        return part.product if part.bias is None else floats(nodes.op("Add", part.product, _constant(model, part.bias)))

    ends = (biased(queries), keys.product, values.product if folded else biased(values))
    heads = attention.heads
    return nodes.op(
        "Attention", *ends, None, None, None, lengths, q_num_heads=heads, kv_num_heads=heads, scale=attention.scale
    )


def _by_bias(nodes: Nodes, attention: Attention, bias: ir.Value) -> ir.Value:
    """Add onnxruntime's MultiHeadAttention, with what is added to the scores: [batch, sequence, heads * width]."""
    ends, heads = merged_operands(nodes, attention), attention.heads
    return nodes.op(
        "MultiHeadAttention", *ends, None, None, bias, domain=CONTRIB, num_heads=heads, scale=attention.scale
    )


def _outlet(attention: Attention) -> ir.Value | None:
    """Return the context as [batch, sequence, heads * width], if it is used in this form only."""
    turned = only_user(attention.node.outputs[0])
    merged = only_user(turned.outputs[0]) if turned is not None and turned.op_type == "Transpose" else None
    wanted = merged is not None and merged.op_type == "Reshape" and len(merged.outputs[0].shape or ()) == 3
    return merged.outputs[0] if merged is not None and wanted else None


def _replace(model: ir.Model, attention: Attention, nodes: Nodes, context: ir.Value) -> None:
    """Put a fused attention in the place of a marked one, and of the nodes that merge its heads."""
    outlet = _outlet(attention)
    if outlet is None:
        apart = nodes.op("Reshape", floats(context), nodes.integers(0, 0, attention.heads, attention.width))
        replace_node(model, attention, nodes, nodes.op("Transpose", floats(apart), perm=HEADS_FIRST))
        return
    context.type, context.shape = outlet.type, outlet.shape
    model.graph.insert_before(attention.node, nodes.close())
    ir.convenience.replace_all_uses_with(outlet, context)
    context.name, outlet.name = outlet.name, None


class _Part(NamedTuple):
    """Queries, keys or values: a product, and the bias that is still to be added to it."""

    product: ir.Value
    bias: _Bias | None


def _without_bias(value: ir.Value) -> _Part:
    """Return a value as what it was before a bias was added to it, and that bias."""
    node = value.producer()
    if node is not None and node.op_type == "Add" and len(list(value.uses())) == 1:
        for product, bias in (node.inputs, node.inputs[::-1]):
            numbers = _numbers(bias)
            if numbers is not None and numbers.ndim == 1 and product is not None and product.producer() is not None:
                return _Part(product, numbers)
    return _Part(value, None)


def _fold_into_next(model: ir.Model, means: ir.Value, bias: _Bias) -> bool:
    """Add the bias of the values to that which follows the next matrix product; return whether that was possible."""
    product = only_user(means)
    if product is None or product.op_type != "MatMul" or product.inputs[0] is not means:
        return False
    matrix = _numbers(product.inputs[1])
    if matrix is None or matrix.ndim != 2:
        return False
    added = bias.astype(np.float64) @ matrix.astype(np.float64)
    user = only_user(product.outputs[0])
    if user is None:
        return False
    index = user.inputs.index(product.outputs[0])
    at = 4 if user.op_type == "SkipLayerNormalization" and index < 2 else 1 - index if user.op_type == "Add" else None
    old = _numbers(user.inputs[at]) if at is not None and at < len(user.inputs) else None
    if at is None or old is None or old.shape != added.shape:
        return False
    user.replace_input_with(at, _constant(model, (old + added).astype(np.float32)))
    return True


def _constant(model: ir.Model, numbers: _Bias) -> ir.Value:
    """Return an initialiser with these numbers; equal ones are held once, as those of ALBERT's layers are."""
    content = np.ascontiguousarray(numbers, np.float32)
    digest = hashlib.sha256(repr(content.shape).encode() + content.tobytes()).hexdigest()
    return constant(model.graph, f"attention.{digest[:24]}", content)


def _numbers(value: ir.Value | None) -> _Bias | None:
    """Return the numbers of an initialiser, or None if the value is computed or missing."""
    if value is None or not value.is_initializer() or value.const_value is None:
        return None
    numbers: _Bias = value.const_value.numpy()
    return numbers
