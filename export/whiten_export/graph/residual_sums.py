"""Write the addition before each normalisation as Sum, which no client of onnxruntime fuses with the normalisation.

onnxruntime's SkipLayerNormFusion joins Add and LayerNormalization to one kernel, which rounds differently: an int8
network amplifies the difference from 1e-7 to 7e-3 of a vector's norm. This project's sessions disable the fusion; the
default sessions of other programs do not. Sum of two values gives the same bits as Add, and the fusion looks for Add.
"""

import onnx_ir as ir


def sum_residuals(model: ir.Model) -> int:
    """Turn every Add whose result is normalised into Sum."""
    changed = 0
    for node in model.graph:
        if node.op_type == "Add" and not node.domain and is_normalized(node.outputs[0]):
            node.op_type = "Sum"
            changed += 1
    return changed


def is_normalized(value: ir.Value) -> bool:
    """Return whether a value enters LayerNormalization, or its mean is subtracted from it, as older exporters write it.

    onnxruntime joins the latter to LayerNormalization before it looks for Add.
    """
    users = [node for node, index in value.uses() if index == 0]
    kinds = {node.op_type for node in users}
    return any("LayerNormalization" in kind for kind in kinds) or {"ReduceMean", "Sub"} <= kinds
