"""Fuse operators for CUDA: attention, normalisation and activation as one kernel each, and padding given by lengths.

onnxscript finds the patterns, but cannot know that an attention bias only hides padding: that is tested by running it.
Attention of ONNX's opset 24 takes the lengths of texts in place of such a bias. CUDA computes it with flash attention
(float16, compute capability 8.0 or more) or memory-efficient attention (all else), whatever the shape, and never holds
a matrix of scores. onnxruntime's own Attention, with lengths, needs cuDNN on an H100, which makes a plan for each new
shape (50 ms), or holds the scores.

Two of the three biases of queries, keys and values cost nothing then. That of the keys adds one number to all scores of
a query, which softmax takes away again. That of the values is added to every mean of values, as weights sum to 1: it
goes into the bias after the next matrix product.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from whiten_export.graph.attention.masks import visible
from whiten_export.graph.builder import ATTENDED, constant
from whiten_export.graph.products import split_gemms
from whiten_runtime.errors import needing

CONTRIB = "com.microsoft"

MASKS = {"Attention": (3, 5), "MultiHeadAttention": (4, 5)}
"""Fused operators of onnxruntime, and indices of two of their inputs: lengths, and the bias that they can replace."""

_BIAS_AT = {"Attention": 2, "MultiHeadAttention": 3}
_KNOWN = {"num_heads", "scale", "qkv_hidden_sizes", "mask_filter_value"}
"""Attributes of the fused operators that are understood here."""

_Bias = NDArray[np.float32]

_MOST_WEIGHTS = 1 << 20
"""Maximum number of weights that a mask may depend on: LayoutLM's reads its shape from the embeddings."""

_OPSET, _IR_VERSION = 24, 11
"""Version of the standard operators whose Attention takes lengths (`nonpad_kv_seqlen`), and of the format with it."""


def fuse_for_cuda(model: ir.Model, longest: int) -> int:
    """Fuse the operators for which onnxruntime has CUDA kernels: (SkipLayer)Normalization, Attention, (Bias)Gelu.

    EmbedLayerNormalization is not: its kernel takes the mean in the type of its input, and waits for the GPU each run.
    """
    optimize_for_ort = fusions()
    outputs = [(value.name, value.type, value.shape) for value in model.graph.outputs]
    split_gemms(model)
    optimize_for_ort(model)
    for value, (name, kind, shape) in zip(model.graph.outputs, outputs, strict=True):
        value.name, value.type, value.shape = name, kind, shape
    _fold_concatenations(model)
    _give_positions_to_each_text(model)
    attentions = [node for node in model.graph if node.domain == CONTRIB and node.op_type in MASKS]
    use_lengths(model, attentions, lambda bias: _says_padding(model, bias, longest))
    RemoveUnusedNodesPass()(model)
    _drop_unused_sums(model)
    return len(attentions)


def fusions() -> Callable[[ir.Model], object]:
    """Return onnxscript's fusions for onnxruntime."""
    with needing("export"):
        from onnxscript.rewriter.ort_fusions import optimize_for_ort
    return optimize_for_ort


def _fold_concatenations(model: ir.Model) -> None:
    """Join the weights of queries, keys and values now, instead of each time the graph is loaded."""
    for node in list(model.graph):
        parts = [value.const_value if value is not None and value.is_initializer() else None for value in node.inputs]
        if node.op_type != "Concat" or not all(part is not None for part in parts):
            continue
        axis, result = node.attributes["axis"].as_int(), node.outputs[0]
        joined = np.concatenate([part.numpy() for part in parts if part is not None], axis)
        ir.convenience.replace_all_uses_with(result, constant(model.graph, f"joined.{result.name}", joined))
        model.graph.remove(node, safe=True)
    RemoveUnusedNodesPass()(model)


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


def _says_padding(model: ir.Model, bias: ir.Value, longest: int) -> bool:
    """Return whether a bias is 0 for every real token and hides all padding, for every query and at every distance."""
    seen = visible(model, bias, longest, _MOST_WEIGHTS)
    return seen is not None and seen.all and not seen.token


def _drop_unused_sums(model: ir.Model) -> None:
    """Remove unused optional outputs of normalisations, such as the sum, which CUDA would write even if unread."""
    for node in model.graph:
        if "LayerNormalization" in node.op_type:
            used = [index for index, value in enumerate(node.outputs) if list(value.uses()) or value.is_graph_output()]
            node.resize_outputs(max(used, default=0) + 1)


def use_lengths(model: ir.Model, nodes: Sequence[ir.Node], only_padding: Callable[[ir.Value], bool]) -> None:
    """Replace fused attention whose bias only hides padding by attention with the lengths of texts.

    A node that cannot be replaced, as its weights are computed, keeps its operator and gets the lengths as a mask.
    """
    known: dict[ir.Value, bool] = {}
    lengths: dict[ir.DataType, ir.Value] = {}
    for node in nodes:
        at, bias_at = MASKS[node.op_type]
        bias = node.inputs[bias_at] if len(node.inputs) > bias_at else None
        if bias is None:
            continue
        if bias not in known:
            known[bias] = only_padding(bias)
        if not known[bias]:
            continue
        parts = _projections(model, node)
        kind = ir.DataType.INT32 if parts is None else ir.DataType.INT64
        if kind not in lengths:
            lengths[kind] = _lengths(model, node, kind)
        if parts is None:
            node.replace_input_with(bias_at, None)
            node.replace_input_with(at, lengths[kind])
        else:
            _replace(model, node, parts, lengths[kind])


def _lengths(model: ir.Model, before: ir.Node, kind: ir.DataType) -> ir.Value:
    """Return the number of tokens of each text, [batch_size]; texts are padded on the right."""
    masks = [value for value in model.graph.inputs if value.name == "attention_mask"]
    masks += [value for node in model.graph for value in node.outputs if value.name == ATTENDED]
    mask = masks[-1]  # in which tokens of a prompt are 1 as well, where the pooling leaves them out
    tape = Tape()
    # Summed in float32: for integers, onnxruntime calls cuDNN, which few other operators need.
    numbers = tape.op("Cast", [mask], {"to": ir.DataType.FLOAT.value})
    axis = constant(model.graph, "lengths.axis", np.array([1]))
    total = tape.op("ReduceSum", [numbers, axis], {"keepdims": 0})
    # Attention without any token is NaN; pooling gives such a text the zero vector.
    total = tape.op("Max", [total, constant(model.graph, "lengths.least", np.float32(1))])
    lengths = tape.op("Cast", [total], {"to": kind.value})
    model.graph.insert_before(before, tape.nodes)
    return lengths


class _Part(NamedTuple):
    """Queries, keys or values: a product, and the bias that is still to be added to it."""

    product: ir.Value
    bias: _Bias | None


def _projections(model: ir.Model, node: ir.Node) -> tuple[_Part, _Part, _Part] | None:
    """Return queries, keys and values of a fused node, or None if they cannot be told apart."""
    if not _KNOWN.issuperset(node.attributes):
        return None
    bias = _numbers(node.inputs[_BIAS_AT[node.op_type]]) if len(node.inputs) > _BIAS_AT[node.op_type] else None
    if node.op_type == "MultiHeadAttention":
        values = list(node.inputs[:3])
        if any(value is None or value.shape is None or len(value.shape) != 3 for value in values):
            return None
        if node.inputs[_BIAS_AT[node.op_type]] is not None and bias is None:
            return None
        if bias is not None and bias.size != 3 * (_width(values[2]) or 0):
            return None
        biases = [None] * 3 if bias is None else np.split(bias, 3)
        return tuple(_without_bias(value, extra) for value, extra in zip(values, biases, strict=True))  # type: ignore
    weights = _numbers(node.inputs[1])
    if weights is None or bias is None or len(set(node.attributes.get_ints("qkv_hidden_sizes", ()))) > 1:
        return None
    tape, parts = Tape(), []
    for matrix, vector in zip(np.split(weights, 3, axis=1), np.split(bias, 3), strict=True):
        product = tape.op("MatMul", [node.inputs[0], _constant(model, matrix)])
        parts.append(_Part(_typed(product), vector))
    model.graph.insert_before(node, tape.nodes)
    return parts[0], parts[1], parts[2]


def _without_bias(value: Any, extra: _Bias | None) -> _Part:
    """Return a value as what it was before a bias was added to it, and that bias."""
    node = value.producer()
    if node is not None and node.op_type == "Add" and len(list(value.uses())) == 1:
        for product, bias in (node.inputs, node.inputs[::-1]):
            numbers = _numbers(bias)
            if numbers is not None and numbers.shape == (_width(value),) and product.producer() is not None:
                return _Part(product, numbers if extra is None else numbers + extra)
    return _Part(value, extra)


def _replace(model: ir.Model, node: ir.Node, parts: tuple[_Part, _Part, _Part], lengths: ir.Value) -> None:
    queries, keys, values = parts
    heads = node.attributes["num_heads"].as_int()
    scale = node.attributes["scale"].as_float() if "scale" in node.attributes else 0.0
    folded = values.bias is None or _fold_into_next(model, node.outputs[0], values.bias)
    tape = Tape()

    def biased(part: _Part) -> ir.Value:
        if part.bias is None:
            return part.product
        return _typed(tape.op("Add", [part.product, _constant(model, part.bias)]))

    ends = [biased(queries), keys.product, values.product if folded else biased(values)]
    attributes: dict[str, int | float] = {"q_num_heads": heads, "kv_num_heads": heads}
    if scale:
        attributes["scale"] = scale
    result = tape.op("Attention", [*ends, None, None, None, lengths], attributes)
    tape.nodes[-1].name = node.name
    result.type, result.shape = node.outputs[0].type, node.outputs[0].shape
    model.graph.insert_before(node, tape.nodes)
    ir.convenience.replace_all_uses_with(node.outputs[0], result)
    result.name, node.outputs[0].name = node.outputs[0].name, None
    model.graph.remove(node, safe=True)
    model.graph.opset_imports[""] = max(_OPSET, model.graph.opset_imports[""])
    model.ir_version = max(_IR_VERSION, model.ir_version)


def _fold_into_next(model: ir.Model, means: ir.Value, bias: _Bias) -> bool:
    """Add the bias of the values to that which follows the next matrix product; return whether that was possible."""
    product, index = _only_user(means)
    if product is None or product.op_type != "MatMul" or index != 0:
        return False
    matrix = _numbers(product.inputs[1])
    if matrix is None or matrix.ndim != 2:
        return False
    added = bias.astype(np.float64) @ matrix.astype(np.float64)
    user, index = _only_user(product.outputs[0])
    if user is None:
        return False
    at = 4 if user.op_type == "SkipLayerNormalization" and index < 2 else 1 - index if user.op_type == "Add" else None
    old = _numbers(user.inputs[at]) if at is not None and at < len(user.inputs) else None
    if at is None or old is None or old.shape != added.shape:
        return False
    user.replace_input_with(at, _constant(model, (old + added).astype(np.float32)))
    return True


def _only_user(value: ir.Value) -> tuple[ir.Node | None, int]:
    """Return the one node that uses a value, and as which input; None if there are more, or the graph gives it."""
    uses = list(value.uses())
    return (uses[0].node, uses[0].idx) if len(uses) == 1 and not value.is_graph_output() else (None, 0)


def _constant(model: ir.Model, numbers: _Bias) -> ir.Value:
    """Return an initialiser with these numbers; equal ones are held once, as those of ALBERT's layers are."""
    content = np.ascontiguousarray(numbers, np.float32)
    digest = hashlib.sha256(repr(content.shape).encode() + content.tobytes()).hexdigest()
    return constant(model.graph, f"attention.{digest[:24]}", content)


def _width(value: ir.Value | None) -> int | None:
    """Return the last dimension of a value; None where it is not known."""
    width = value.shape[-1] if value is not None and value.shape is not None and len(value.shape) else None
    return width if isinstance(width, int) else None


def _numbers(value: ir.Value | None) -> _Bias | None:
    """Return the numbers of an initialiser, or None if the value is computed or missing."""
    if value is None or not value.is_initializer() or value.const_value is None:
        return None
    numbers: _Bias = value.const_value.numpy()
    return numbers


def _typed(value: ir.Value) -> ir.Value:
    value.type = ir.TensorType(ir.DataType.FLOAT)
    return value
