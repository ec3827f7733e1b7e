"""Convert a network to half precision, for GPUs: float16 except pooling, whitening and nodes of indices."""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from whiten_export.graph.build import constant, weights_of
from whiten_runtime.errors import WhitenError

_LARGEST = 65504.0
_FLOAT, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
_OURS = "whiten"
"""Prefix of the names of the nodes that this project appends."""

_STATISTICS = (1, 2)
"""Indices of the outputs of a LayerNormalization that are always float32."""

_WHOLE = dict.fromkeys(("Shape", "Size", "ArgMax", "NonZero"), ir.DataType.INT64)
_SUBGRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_TRUTH = {"And", "Equal", "Greater", "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor"}


def halve_weights(model: ir.Model) -> int:
    """Store every large weight but the whitening in float16, and cast it back when the graph is loaded."""
    replaced = 0
    for value in list(model.graph.initializers.values()):
        weight = weights_of(value)
        if weight is None:
            continue
        tape = Tape(model.graph)
        half = tape.initializer(ir.tensor(weight.astype(np.float16), name=f"{value.name}.half"))
        full = tape.op("Cast", [half], {"to": ir.DataType.FLOAT.value})
        full.name = f"{value.name}.full"
        replaced += 1
        ir.convenience.replace_all_uses_with(value, full)
        first = next(iter(model.graph))
        model.graph.insert_before(first, tape.nodes)
    RemoveUnusedNodesPass()(model)
    return replaced


def halve_network(model: ir.Model) -> None:
    """Compute the network in float16."""
    nodes = list(model.graph)
    for node in nodes:
        if any(attribute.type in _SUBGRAPHS for attribute in node.attributes.values()):
            raise WhitenError(f"a {node.op_type} node cannot be turned into float16; use --precision fp32")
    _complete_types(nodes)
    full = {node for node in nodes if (node.name or "").startswith(_OURS)} | _index_nodes(nodes)
    halves: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        half = node not in full
        for index, value in enumerate(node.inputs):
            if value is None or value.dtype != _FLOAT:
                continue
            if value.is_initializer():
                if half:
                    node.replace_input_with(index, _half_constant(model, value, halves))
            elif half and value.producer() in full:
                node.replace_input_with(index, _cast(model, value, _HALF, halves))
        if half:
            _halve_attributes(node)
    outputs = set(model.graph.outputs)
    for node in nodes:
        if node in full:
            continue
        for index, value in enumerate(node.outputs):
            if value.dtype != _FLOAT or ("LayerNormalization" in node.op_type and index in _STATISTICS):
                continue
            users = [(user, index) for user, index in value.uses() if user in full]
            if users or value in outputs:
                _widen(model, value, users, value in outputs)
            else:
                value.type = ir.TensorType(_HALF)
    RemoveUnusedNodesPass()(model)


def _complete_types(nodes: list[ir.Node]) -> None:
    """Set types that shape inference left out, as those of fused operators: mostly the type of the first input."""
    for node in nodes:
        known = next((value.dtype for value in node.inputs if value is not None and value.dtype is not None), _FLOAT)
        if node.op_type == "Cast":
            known = ir.DataType(node.attributes["to"].as_int())
        elif node.op_type == "Where":
            known = node.inputs[1].dtype if node.inputs[1] is not None and node.inputs[1].dtype else _FLOAT
        known = ir.DataType.BOOL if node.op_type in _TRUTH else _WHOLE.get(node.op_type, known)
        for value in node.outputs:
            if value.dtype is None:
                value.type = ir.TensorType(known)


def _index_nodes(nodes: list[ir.Node]) -> set[ir.Node]:
    """Return the nodes whose floating-point results are finally converted to integers."""
    indexing: set[ir.Node] = set()
    for node in reversed(nodes):
        ends = node.op_type == "Cast" and node.outputs[0].dtype not in (_FLOAT, _HALF, ir.DataType.BOOL)
        if not ends and node not in indexing:
            continue
        producers = {value.producer() for value in node.inputs if value is not None and value.dtype == _FLOAT}
        indexing.update({node, *(producer for producer in producers if producer is not None)} if producers else ())
    return indexing


def _half_constant(model: ir.Model, value: ir.Value, halves: dict[ir.Value, ir.Value]) -> ir.Value:
    if value not in halves:
        assert value.const_value is not None
        numbers = np.clip(value.const_value.numpy(), -_LARGEST, _LARGEST).astype(np.float16)
        halves[value] = constant(model.graph, f"{value.name}.half", numbers)
    return halves[value]


def _cast(model: ir.Model, value: ir.Value, kind: ir.DataType, known: dict[ir.Value, ir.Value]) -> ir.Value:
    if value not in known:
        producer = value.producer()
        assert producer is not None
        tape = Tape()
        known[value] = tape.op("Cast", [value], {"to": kind.value})
        known[value].type = ir.TensorType(kind)
        model.graph.insert_after(producer, tape.nodes)
    return known[value]


def _widen(model: ir.Model, value: ir.Value, users: list[tuple[ir.Node, int]], is_output: bool) -> None:
    """Give float32 users of a float16 value a float32 copy, which takes over its name if the value is an output."""
    wide = _cast(model, value, _FLOAT, {})
    for user, index in users:
        user.replace_input_with(index, wide)
    if is_output:
        wide.name, value.name = value.name, f"{value.name}.half"
        wide.shape = value.shape
        outputs = model.graph.outputs
        outputs[:] = [wide if output is value else output for output in outputs]
    value.type = ir.TensorType(_HALF)


def _halve_attributes(node: ir.Node) -> None:
    if node.op_type == "Cast" and node.attributes["to"].as_int() == _FLOAT.value:
        node.attributes["to"] = ir.AttrInt64("to", _HALF.value)
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == _FLOAT:
            numbers = np.clip(attribute.as_tensor().numpy(), -_LARGEST, _LARGEST).astype(np.float16)
            node.attributes[name] = ir.AttrTensor(name, ir.tensor(numbers))
