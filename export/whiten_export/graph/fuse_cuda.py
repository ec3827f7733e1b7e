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

from whiten_export.graph.attention_lengths import MASKS, use_lengths
from whiten_export.graph.builder import constant
from whiten_export.graph.fold_positions import PartialRun
from whiten_export.graph.products import split_gemms
from whiten_runtime.errors import needing

CONTRIB = "com.microsoft"

_TRIED = ((5, 3, 1), (1,), (7, 7), (2, 9))
_HIDDEN = -1e4
"""Bias at or below which a token gets no weight."""

_LEARNT = 1 << 20
"""Number of weights above which a bias is taken as learnt, such as that of relative positions."""


def fuse_for_cuda(model: ir.Model, longest: int) -> int:
    """Fuse the operators for which onnxruntime has CUDA kernels: (SkipLayer)Normalization, Attention, (Bias)Gelu.

    EmbedLayerNormalization is not among them: CUDA's kernel computes mean and variance in the type of its input and
    waits for the GPU in every run. `fold_positions` does most of what it would.
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
    """Repeat the positions of rotary embeddings for each text: onnxruntime's operator refuses one row for all.

    Newer versions of transformers trace positions of each text; up to 5.17 they trace one row.
    """
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
