"""Build graphs: add nodes, write graphs with their weights beside them, find products and bring them to one form."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from whiten_export.proof.reference import Dense
from whiten_runtime.bundle.bundle import EXTERNAL_DATA_FILE

MEAN, WEIGHT = "whitening.mean", "whitening.weight"
"""Names of the whitening's initialisers."""

OWN = "whiten."
"""Prefix of the names of initialisers that follow the hidden states; they stay float32 in every precision."""

ATTENDED = "whiten.attention_mask"
"""Mask of a graph whose pooling leaves prompts out: 1 for all tokens, those of a prompt too."""


@dataclass(frozen=True)
class HiddenStates:
    """Graph from token ids to hidden states."""

    model: ir.Model  # graph that takes `input_ids` and `attention_mask`, int64 [batch_size, sequence_length]
    states: tuple[ir.Value, ...]  # hidden states of the chosen layers, each float32 [batch_size, sequence_length, d]
    # weight of each token in the pooling, float32 [batch_size, sequence_length]; None if it follows from the mask
    # and only the pooling
    weights: ir.Value | None = None
    # dense layer over the state of the first token, as BERT's; None if the pooling does not need one
    pooler: Dense | None = None


class GraphBuilder:
    """Builds nodes and constants for the end of a graph; `close` adds the nodes to it."""

    def __init__(self, model: ir.Model, prefix: str = "whiten") -> None:
        self._prefix = prefix
        self._graph = model.graph
        self._model = model
        self._tape = Tape()

    def input(self, name: str) -> ir.Value:
        """Return an input of the graph."""
        return next(value for value in self._graph.inputs if value.name == name)

    def op(self, kind: str, *inputs: ir.Value, **attributes: int | float) -> ir.Value:
        """Add a node with one output."""
        return self._tape.op(kind, list(inputs), attributes or None)

    def float32(self, value: ir.Value) -> ir.Value:
        """Add a Cast node."""
        return self.op("Cast", value, to=ir.DataType.FLOAT.value)

    def boolean(self, value: ir.Value) -> ir.Value:
        """Add a Cast node."""
        return self.op("Cast", value, to=ir.DataType.BOOL.value)

    def constant(self, name: str, array: NDArray[np.generic] | np.generic) -> ir.Value:
        """Return the initialiser of this name, created if it does not exist."""
        return constant(self._graph, name, array)

    def integers(self, *values: int) -> ir.Value:
        """Return an int64 constant [n], such as axes."""
        return self.constant("whiten.axes_" + "_".join(map(str, values)), np.array(values, np.int64))

    def scalar(self, value: float) -> ir.Value:
        """Return a float32 constant []."""
        return self.constant(f"whiten.scalar_{value!r}", np.float32(value))

    def close(self, *outputs: ir.Value) -> ir.Model:
        """Add the nodes to the graph, set these values as its outputs, remove unused nodes, and return it."""
        for index, node in enumerate(self._tape.nodes):
            node.name = f"{self._prefix}_{index}"
            for value in node.outputs:
                value.name = value.name or f"{self._prefix}.value_{index}"
        self._graph.extend(self._tape.nodes)
        self._graph.outputs[:] = outputs
        RemoveUnusedNodesPass()(self._model)
        return self._model


def constant(graph: ir.Graph, name: str, array: NDArray[np.generic] | np.generic) -> ir.Value:
    """Return the initialiser of this name, created if it does not exist."""
    if name not in graph.initializers:
        tensor = ir.tensor(np.asarray(array), name=name)
        kind, shape = ir.TensorType(tensor.dtype), ir.Shape(np.shape(array))
        graph.register_initializer(ir.Value(name=name, type=kind, shape=shape, const_value=tensor))
    return graph.initializers[name]


def describe(value: ir.Value, name: str, *shape: str | int) -> ir.Value:
    """Set the name and shape of a float32 value."""
    value.name, value.type, value.shape = name, ir.TensorType(ir.DataType.FLOAT), ir.Shape(list(shape))
    return value


def describe_input(value: ir.Value) -> ir.Value:
    """Set the type and shape of token ids or a mask: int64 [batch_size, sequence_length]."""
    value.type, value.shape = ir.TensorType(ir.DataType.INT64), ir.Shape(["batch_size", "sequence_length"])
    return value


_INLINE_LIMIT = 1_000_000
"""Bytes of weights above which they are stored in a separate file, which onnxruntime maps instead of copying."""


def save_graph(model: ir.Model, path: Path) -> None:
    """Write the graph; its weights, unless they are small, go to `model.onnx_data` beside it."""
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)
    path.parent.mkdir(parents=True, exist_ok=True)
    if size > _INLINE_LIMIT:
        ir.save(model, path, external_data=Path(EXTERNAL_DATA_FILE).name)
    else:
        ir.external_data.load_to_model(model)  # they may be stored beside another graph
        ir.save(model, path)


def read_graph(path: Path) -> ir.Model:
    """Read a graph, with weights that stay in their file, which may be a link, as in the cache of the model hub."""
    model = ir.load(path)
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = follow_link(value.const_value)
    return model


def follow_link(tensor: ir.ExternalTensor) -> ir.ExternalTensor:
    """Return a tensor in the file that a link leads to: onnx_ir refuses links."""
    if not Path(tensor.path).is_symlink():
        return tensor
    file = Path(tensor.path).resolve()
    return ir.ExternalTensor(
        file.name,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape,
        name=tensor.name,
        base_dir=file.parent,
    )


def reopen_graph(model: ir.Model, path: Path) -> ir.Model:
    """Write the graph and read it back, so that its weights are in a file and no longer in memory."""
    save_graph(model, path)
    drop_weights(model.graph.initializers.values())
    return ir.load(path)


def drop_weights(values: Iterable[ir.Value]) -> None:
    """Forget the weights of values: rules of onnxscript refer to the last graph that they were applied to."""
    for value in values:
        value.const_value = None


def save_with_outputs(model: ir.Model, values: Sequence[ir.Value], path: Path) -> None:
    """Write the same graph with other values as its outputs, in the folder of its weights, which are not copied."""
    outputs = list(model.graph.outputs)
    try:
        model.graph.outputs[:] = values
        ir.save(model, path)
    finally:
        model.graph.outputs[:] = outputs


def strip(model: ir.Model) -> None:
    """Remove metadata for debugging: it contains paths of this machine and differs from run to run."""
    model.producer_name, model.producer_version, model.doc_string = "whiten", None, None
    model.metadata_props.clear()
    model.graph.name, model.graph.doc_string = "whiten", None
    model.graph.metadata_props.clear()
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


class Nodes:
    """Collects nodes, named `PREFIX.N`, for a graph or a graph inside one of its nodes."""

    def __init__(self, graph: ir.Graph, prefix: str) -> None:
        self._graph, self.prefix = graph, prefix
        self._tape = Tape()

    def op(
        self, kind: str, *inputs: ir.Value | None, domain: str = "", **attributes: int | float | Sequence[int]
    ) -> ir.Value:
        """Add a node with one output."""
        return self._tape.op(kind, list(inputs), dict(attributes) or None, domain=domain)

    def choose(self, condition: ir.Value, yes: ir.Graph, no: ir.Graph) -> ir.Value:
        """Add a node that runs one of two graphs, with one float32 output."""
        graphs = {"then_branch": yes, "else_branch": no}
        attributes = {name: ir.AttrGraph(name, graph) for name, graph in graphs.items()}
        return floats(self._tape.op("If", [condition], attributes))

    def scan(self, items: ir.Value, body: ir.Graph) -> ir.Value:
        """Add a node that runs a graph for each item of a list; its float32 output stacks the results.

        Scan, unlike Loop, ends by itself: it takes as many steps as the list has items.
        """
        attributes: dict[str, ir.Attr | int] = {"body": ir.AttrGraph("body", body), "num_scan_inputs": 1}
        return floats(self._tape.op("Scan", [items], attributes))

    def integers(self, *values: int) -> ir.Value:
        """Return an int64 constant [n]."""
        return constant(self._graph, "attention.list_" + "_".join(map(str, values)), np.array(values, np.int64))

    def integer(self, value: int) -> ir.Value:
        """Return an int64 constant []."""
        return constant(self._graph, f"attention.integer_{value}", np.array(value, np.int64))

    def number(self, value: float) -> ir.Value:
        """Return a float32 constant []."""
        return constant(self._graph, f"attention.number_{value!r}", np.float32(value))

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """Return the size of an axis, int64 [1]."""
        return self.op("Shape", value, start=axis, end=axis + 1)

    def close(self) -> Sequence[ir.Node]:
        """Return the nodes, named."""
        for index, node in enumerate(self._tape.nodes):
            node.name = f"{self.prefix}.{index}"
            for output in node.outputs:
                output.name = f"{self.prefix}.value_{index}"
        return self._tape.nodes

    def graph(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ir.Graph:
        """Return the nodes as a graph inside a node; it reads values of the graph around it."""
        return ir.Graph(inputs, outputs, nodes=self.close(), name=self.prefix, opset_imports=self._graph.opset_imports)


def floats(value: ir.Value) -> ir.Value:
    """Set the type of a value to float32."""
    value.type = ir.TensorType(ir.DataType.FLOAT)
    return value


SMALL = 1024
"""Number of elements below which an initialiser is left as it is."""


def activations(model: ir.Model) -> list[ir.Value]:
    """Return the values that are multiplied by constant weights, in the order of the graph."""
    return list(dict.fromkeys(node.inputs[0] for node in model.graph if is_linear(node) and node.inputs[0]))


def is_linear(node: ir.Node) -> bool:
    """Return whether a node multiplies an activation by constant weights, float32 [n, m], of the network."""
    weight = weights_of(node.inputs[1]) if node.op_type == "MatMul" else None
    return weight is not None and weight.ndim == 2


def weights_of(value: ir.Value | None) -> NDArray[np.float32] | None:
    """Return a large float32 initialiser of the network, as an array; None for the modules and the whitening."""
    if value is None or not value.is_initializer() or value.const_value is None:
        return None
    if value.name in (MEAN, WEIGHT) or str(value.name).startswith(OWN):
        return None
    if value.const_value.dtype != ir.DataType.FLOAT or value.const_value.size < SMALL:
        return None
    return value.const_value.numpy()


def linear_users(source: ir.Value) -> list[ir.Node]:
    """Return the nodes that multiply an activation by constant weights."""
    return [node for node, index in source.uses() if index == 0 and is_linear(node)]


def shares_weights(source: ir.Value) -> bool:
    """Return whether all weights of an activation are also those of others, which have none of their own, as in ALBERT.

    Such weights are held once: without factors of an activation's channels, and rounded to the nearest. Where only some
    are shared, as DeBERTa's keys with its relative positions, each activation has its own copy.
    """
    users = {user for activation in _with_shared_weights(source) for user in _with_shared_weights(activation)}
    return len(users) > 1 and all(_all_are_shared(user) for user in users)


def _with_shared_weights(source: ir.Value) -> set[ir.Value]:
    """Return the activations that are multiplied by a weight of this one."""
    weights = [node.inputs[1] for node in linear_users(source)]
    users = [user.inputs[0] for weight in weights if weight is not None for user, index in weight.uses() if index == 1]
    return {value for value in users if value is not None}


def _all_are_shared(source: ir.Value) -> bool:
    users = [[user for user, _ in weight.uses()] for node in linear_users(source) if (weight := node.inputs[1])]
    return all(len({user.inputs[0] for user in sharing}) > 1 for sharing in users)


def bias_of(product: ir.Node) -> ir.Node | None:
    """Return the Add of a constant bias [m] that is the only user of a product; None if there is none."""
    uses = list(product.outputs[0].uses())
    if len(uses) != 1 or uses[0].node.op_type != "Add":
        return None
    node, index = uses[0]
    other = node.inputs[1 - index]
    if other is None or not other.is_initializer() or other.const_value is None:
        return None
    return node if other.const_value.shape.rank() == 1 and other.dtype == ir.DataType.FLOAT else None


def width_of(source: ir.Value) -> int:
    """Return the number of channels of an activation."""
    weight = weights_of(linear_users(source)[0].inputs[1])
    assert weight is not None
    return int(weight.shape[0])


def weights_by_result(source: ir.Value) -> dict[str, NDArray[np.float32]]:
    """Return the weights of each product of an activation, float32 [n, m], by the name of the product's result."""
    weights = {str(node.outputs[0].name): weights_of(node.inputs[1]) for node in linear_users(source)}
    return {name: weight for name, weight in weights.items() if weight is not None}


def plain_products(model: ir.Model) -> None:
    """Split Gemm, as of GPT-2, into MatMul and Add, and transpose constant weights, as ALBERT's, now."""
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
    """Return whether a value enters LayerNormalization, or its mean is subtracted from it, which onnxruntime joins."""
    users = [node for node, index in value.uses() if index == 0]
    kinds = {node.op_type for node in users}
    return any("LayerNormalization" in kind for kind in kinds) or {"ReduceMean", "Sub"} <= kinds
