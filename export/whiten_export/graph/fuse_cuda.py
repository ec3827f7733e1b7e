"""Fuse operators for CUDA: attention, normalisation and activation as one kernel each, and padding given by lengths.

onnxscript finds the patterns. It cannot know that an attention bias only hides padding. If the lengths of the texts
replace such a bias, CUDA's fused kernels can be used. Whether a bias only hides padding is tested by running it, not
concluded from the graph's form.
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from whiten_export.graph.builder import ATTENDED, constant
from whiten_export.graph.partial_run import PartialRun
from whiten_export.graph.products import split_gemms
from whiten_runtime.checks import needing

CONTRIB = "com.microsoft"

_MASKS = {"Attention": (3, 5), "MultiHeadAttention": (4, 5)}
"""Indices of two inputs of the fused operators: the lengths, and the bias that they can replace."""

_TRIED = ((5, 3, 1), (1,), (7, 7), (2, 9))
_HIDDEN = -1e4
"""Bias at or below which a token gets no weight."""

_ALIGNED = 8
"""The size of a head must be a multiple of this for CUDA's memory-efficient attention."""

_LEARNT = 1 << 20
"""Number of weights above which a bias is taken as learnt, such as that of relative positions."""


def fuse_for_cuda(model: ir.Model, longest: int, half: bool = False) -> int:
    """Fuse the operators for which onnxruntime has CUDA kernels: (SkipLayer)Normalization, Attention, (Bias)Gelu.

    EmbedLayerNormalization is not among them: CUDA's kernel computes mean and variance in the type of its input and
    waits for the GPU in every run. `fold_positions` does most of what it would.

    Args:
        model: graph in float32 after `fold_positions`, changed in place.
        longest: maximum number of tokens of a text.
        half: whether the network will be computed in float16.

    Returns:
        Number of attention nodes that were fused.

    Raises:
        WhitenError: onnxscript is not installed.
    """
    optimize_for_ort = fusions()
    outputs = [(value.name, value.type, value.shape) for value in model.graph.outputs]
    split_gemms(model)
    optimize_for_ort(model)
    for value, (name, kind, shape) in zip(model.graph.outputs, outputs, strict=True):
        value.name, value.type, value.shape = name, kind, shape
    _fold_concatenations(model)
    attentions = [node for node in model.graph if node.domain == CONTRIB and node.op_type in _MASKS]
    _use_lengths(model, attentions, longest, half)
    _drop_unused_sums(model)
    return len(attentions)


def fusions() -> Callable[[ir.Model], object]:
    """Return onnxscript's fusions for onnxruntime.

    Raises:
        WhitenError: onnxscript is not installed.
    """
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


def _use_lengths(model: ir.Model, attentions: list[ir.Node], longest: int, half: bool) -> None:
    lengths: dict[bool, ir.Value] = {}
    padding: dict[ir.Value, bool] = {}
    for node in attentions:
        at, bias_at = _MASKS[node.op_type]
        bias = node.inputs[bias_at] if len(node.inputs) > bias_at else None
        if bias is None:
            continue
        if bias not in padding:
            padding[bias] = _says_padding(model, bias, longest)
        if padding[bias]:
            starts = half and (_head_size(node) or 1) % _ALIGNED == 0
            if starts not in lengths:
                lengths[starts] = _lengths(model, attentions[0], starts)
            node.replace_input_with(bias_at, None)
            node.replace_input_with(at, lengths[starts])
    RemoveUnusedNodesPass()(model)


def _lengths(model: ir.Model, before: ir.Node, starts: bool) -> ir.Value:
    """Return the number of tokens of each text, int32 [batch_size]; texts are padded on the right.

    With `starts`, return int32 [3 * batch_size + 2]: these numbers, and twice the offsets at which each text starts and
    the last one ends. Only CUDA's memory-efficient attention takes this, and float16 with aligned heads always uses
    that kernel. All of it is computed from the mask, so that nothing is copied from the CPU.
    """
    masks = [value for value in model.graph.inputs if value.name == "attention_mask"]
    masks += [value for node in model.graph for value in node.outputs if value.name == ATTENDED]
    mask = masks[-1]  # in which tokens of a prompt are 1 as well, where the pooling leaves them out
    axis = constant(model.graph, "lengths.axis", np.array([1]))
    tape = Tape()

    def count(tokens: ir.Value) -> ir.Value:
        """Sum in float32: for integers, onnxruntime calls cuDNN, which few other operators need."""
        numbers = tape.op("Cast", [tokens], {"to": ir.DataType.FLOAT.value})
        total = tape.op("ReduceSum", [numbers, axis], {"keepdims": 0})
        total = tape.op("Max", [total, constant(model.graph, "lengths.least", np.float32(1))])
        return tape.op("Cast", [total], {"to": ir.DataType.INT32.value})

    lengths = count(mask)  # attention without any token is NaN; pooling gives such a text the zero vector
    if starts:
        widths = count(tape.op("GreaterOrEqual", [mask, constant(model.graph, "lengths.none", np.int64(0))]))
        ends = tape.op("CumSum", [widths, constant(model.graph, "lengths.first_axis", np.int64(0))])
        zero = constant(model.graph, "lengths.zero", np.zeros(1, np.int32))
        lengths = tape.op("Concat", [lengths, zero, ends, zero, ends], {"axis": 0})
    model.graph.insert_before(before, tape.nodes)
    return lengths


def _head_size(node: ir.Node) -> int | None:
    """Return the number of coordinates of a head; None where it is not known."""
    heads = node.attributes["num_heads"].as_int()
    if node.op_type == "Attention":
        weights = node.inputs[1]
        width = weights.shape[1] if weights is not None and weights.shape is not None else None
        return width // 3 // heads if isinstance(width, int) else None
    query = node.inputs[0]
    width = query.shape[-1] if query is not None and query.shape is not None else None
    return width // heads if isinstance(width, int) else None


def _says_padding(model: ir.Model, bias: ir.Value, longest: int) -> bool:
    """Return whether a bias is 0 for every real token and hides all padding, for every query and at every distance."""
    part = PartialRun(model, bias, _LEARNT)
    return part.allowed and all(_hides(part, lengths) for lengths in (*_TRIED, (longest,)))


def _hides(part: PartialRun, lengths: tuple[int, ...]) -> bool:
    real = np.arange(max(lengths)) < np.array(lengths)[:, None]
    found = part({"attention_mask": real.astype(np.int64), "input_ids": real.astype(np.int64)})
    count, width = real.shape
    if found.ndim != 4:
        return False
    found = np.broadcast_to(found, (count, found.shape[1], width, width))
    seen = np.broadcast_to(real[:, None, None, :], found.shape)
    looks = np.broadcast_to(real[:, None, :, None], found.shape)
    return bool((found[seen & looks] == 0).all() and (found[~seen & looks] <= _HIDDEN).all())


def _drop_unused_sums(model: ir.Model) -> None:
    """Remove unused optional outputs of normalisations, such as the sum, which CUDA would write even if unread."""
    for node in model.graph:
        if "LayerNormalization" in node.op_type:
            used = [index for index, value in enumerate(node.outputs) if list(value.uses()) or value.is_graph_output()]
            node.resize_outputs(max(used, default=0) + 1)
