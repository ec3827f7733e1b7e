"""Bring matrix products and residual sums to the forms that the passes after them look for."""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from whiten_export.graph.builder import constant


def plain_products(model: ir.Model) -> None:
    """Split Gemm into MatMul and Add, and transpose constant weights now.

    Exporters leave Gemm where a network multiplies matrices [tokens, n], as GPT-2 does, and a Transpose of weights that
    several layers share, as in ALBERT.
    """
    split_gemms(model)
    _fold_transposes(model)


def split_gemms(model: ir.Model) -> None:
    """Replace Gemm, which takes only matrices, by MatMul and Add."""
    for node in list(model.graph):
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        if node.op_type != "Gemm" or any(attributes.get(name, 1) != 1 for name in ("alpha", "beta")):
            continue
        if attributes.get("transA", 0):
            continue
        tape = Tape()
        weight = node.inputs[1]
        assert weight is not None
        if attributes.get("transB", 0):
            weight = tape.op("Transpose", [weight], {"perm": [1, 0]})
        result = node.outputs[0]
        value = tape.op("MatMul", [node.inputs[0], weight])
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None:  # exporters leave out one of zeros
            value = tape.op("Add", [value, bias])
        value.type, value.shape = result.type, result.shape
        model.graph.insert_before(node, tape.nodes)
        ir.convenience.replace_all_uses_with(result, value)
        model.graph.remove(node, safe=True)


def _fold_transposes(model: ir.Model) -> None:
    """Replace the Transpose of an initialiser by an initialiser; users of the same weights share it."""
    for node in list(model.graph):
        weight = node.inputs[0] if node.op_type == "Transpose" else None
        if weight is None or not weight.is_initializer() or weight.const_value is None:
            continue
        array = weight.const_value.numpy()
        order = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(array.ndim)[::-1]
        turned = np.ascontiguousarray(np.transpose(array, order))
        name = f"{weight.name}.transposed_{'_'.join(map(str, order))}"
        ir.convenience.replace_all_uses_with(node.outputs[0], constant(model.graph, name, turned))
        model.graph.remove(node, safe=True)
    RemoveUnusedNodesPass()(model)


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
