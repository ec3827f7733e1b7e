"""Estimate the memory that a text takes in a graph, from the shapes of its values."""

import onnx_ir as ir

from whiten_export.graph.attention.blocks import BLOCK
from whiten_runtime.bundle.records import TextMemory

_TOKENS, _PAIRS = 3.5, 1.2
"""Factors of what onnxruntime takes over the sum of the values that are alive: blocks are joined and turned, and memory
is taken in steps that double. Measured on networks of base size, 2,048 to 8,192 tokens, and rounded up."""


def text_memory(model: ir.Model, longest: int, in_blocks: bool) -> TextMemory:
    """Estimate the memory of a text of up to `longest` tokens, from a traced graph before attention is divided.

    It is that of the values which are alive at the node where they are the most. Values of unknown shape are not
    counted. `in_blocks` says that all attentions will be computed in blocks of queries.
    """
    nodes = list(model.graph)
    last = {value: index for index, node in enumerate(nodes) for value in node.inputs if value is not None}
    alive: list[tuple[int, int, int]] = []
    peak = (0, 0)
    for index, node in enumerate(nodes):
        alive += [(last.get(value, index), *_bytes(value, in_blocks)) for value in node.outputs]
        sums = (sum(value[1] for value in alive), sum(value[2] for value in alive))
        peak = max(peak, sums, key=lambda pair: pair[0] * longest + pair[1] * longest**2)
        alive = [value for value in alive if value[0] > index]
    return TextMemory(token_bytes=round(_TOKENS * peak[0]), pair_bytes=round(_PAIRS * peak[1]))


def _bytes(value: ir.Value, in_blocks: bool) -> tuple[int, int]:
    """Return the bytes of a value for each token, and for each pair of tokens."""
    if value.shape is None or value.dtype is None:
        return 0, 0
    size, axes = int(value.dtype.itemsize), 0
    for axis in value.shape:
        if isinstance(axis, int):
            size *= axis
        elif str(axis) != "batch_size":
            axes += 1
    if axes >= 2:
        return (BLOCK * size, 0) if in_blocks else (0, size)
    return (size, 0) if axes else (0, 0)
