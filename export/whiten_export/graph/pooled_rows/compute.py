"""Compute the last layer for the one token of each text that pooling reads: its first, or its last.

Nodes between the pooling and the keys and values of the last attention work on each token, or each query, without
the others. Where they have no other users, they get one token of each text. What they read from elsewhere, such as the
states that enter the layer, is reduced to that token before.
"""

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass, ShapeInferencePass

from whiten_export.graph.attention.blocks import PooledMasks
from whiten_export.graph.builder import Nodes
from whiten_export.graph.pooled_rows.rules import Shape, Step, Tokens, inputs_of
from whiten_runtime.bundle.records import Pooling

POOLINGS_OF_ONE_TOKEN = ("cls", "last", "pooler")
"""Poolings whose weights are 1 for one token of a text, and 0 for all others."""


def compute_pooled_rows(model: ir.Model, pooling: Pooling | None, longest: int) -> int:
    """Compute one token of each text where no other one is read; return the number of matrix products that do."""
    product = _pooling_product(model) if pooling in POOLINGS_OF_ONE_TOKEN else None
    if product is None:
        return 0
    masks = PooledMasks(model, longest)
    plan = _Plan(_shapes(model), set(masks.masks))
    plan.follow(model.graph, product)
    products = sum(node.op_type in ("MatMul", "MatMulInteger", "Gemm") for node in plan.inside)
    if products:
        _rewrite(model, product, plan, masks)
    return products


def _pooling_product(model: ir.Model) -> ir.Node | None:
    """Return the only product of weights of tokens and hidden states, if there is one."""
    states = [
        node
        for node in model.graph
        if node.op_type == "MatMul"
        and str(node.name).startswith("whiten_")
        and (row := node.inputs[0]) is not None
        and (unsqueeze := row.producer()) is not None
        and unsqueeze.op_type == "Unsqueeze"
        and str(unsqueeze.name).startswith("whiten_")
    ]
    return states[0] if len(states) == 1 else None


def _shapes(model: ir.Model) -> dict[str, Shape]:
    """Return the shapes of values by name; quantised graphs do not hold all."""
    inferred = model.clone()
    ShapeInferencePass()(inferred)
    values = [*inferred.graph.inputs, *inferred.graph.initializers.values()]
    values += [output for node in inferred.graph for output in node.outputs]
    return {
        str(value.name): tuple(size if isinstance(size, int) else None for size in value.shape)
        for value in values
        if value.shape is not None
    }


class _Plan:
    """Finds the nodes that can work on one token of each text."""

    def __init__(self, shapes: dict[str, Shape], masks: set[ir.Value]) -> None:
        self._shapes, self._masks = shapes, masks
        self.inside: dict[ir.Node, Tokens] = {}
        self.asked: dict[ir.Value, dict[tuple[ir.Node, int], Tokens]] = {}
        self._dropped: set[tuple[ir.Node, int]] = set()

    def follow(self, graph: ir.Graph, product: ir.Node) -> None:
        """Go from the pooling up, as far as all users of a value read one token of each text."""
        state = product.inputs[1]
        assert state is not None
        self.asked[state] = {(product, 1): Tokens(1)}
        for node in reversed(list(graph)):
            uses = [(use.node, use.idx) for output in node.outputs for use in output.uses()]
            live = [use for use in uses if use not in self._dropped]
            if uses and not live:
                self._dropped |= {(node, index) for index in range(len(node.inputs))}
                continue
            asked = {use: axis for value in node.outputs for use, axis in self.asked.get(value, {}).items()}
            if not asked or set(asked) != set(live) or len(set(asked.values())) > 1 or node.outputs[0] in self._masks:
                continue
            tokens = next(iter(asked.values()))
            inputs = self._inputs(node, tokens)
            if inputs is None:
                continue
            self.inside[node] = tokens
            if node.op_type == "Reshape":
                self._dropped.add((node, 1))
            for index, axis in inputs.items():
                source = node.inputs[index]
                assert source is not None
                self.asked.setdefault(source, {})[node, index] = axis

    def shape(self, value: ir.Value | None) -> Shape:
        """Return the shape of a value; KeyError if it is not known."""
        return self._shapes[str(value.name)] if value is not None else ()

    def _inputs(self, node: ir.Node, tokens: Tokens) -> dict[int, Tokens] | None:
        try:
            shapes = [self.shape(value) for value in node.inputs]
            return inputs_of(Step(node, tokens, shapes, self.shape(node.outputs[0])))
        except KeyError:
            return None


def _rewrite(model: ir.Model, product: ir.Node, plan: _Plan, masks: PooledMasks) -> None:
    graph = model.graph
    nodes = Nodes(graph, "pooled")
    row = product.inputs[0]
    assert row is not None
    unsqueeze = row.producer()
    assert unsqueeze is not None
    weights = unsqueeze.inputs[0]
    position = nodes.op("ArgMax", weights, axis=1, keepdims=0)  # [batch]
    some = nodes.op("ReduceMax", row, nodes.integers(2), keepdims=1)  # 0 for a text without a token, [batch, 1, 1]
    for value, users in plan.asked.items():
        if value.producer() in plan.inside:
            continue
        for tokens in dict.fromkeys(users.values()):
            chosen = _choose(nodes, value, plan.shape(value), tokens, position, masks)
            for (node, index), axis in users.items():
                if axis == tokens:
                    node.replace_input_with(index, chosen)
    for node, tokens in plan.inside.items():
        for value in node.outputs:
            if value.shape is not None and node.op_type != "Shape":
                value.shape = _narrowed(plan.shape(value), tokens)
        if node.op_type == "Reshape":
            shape = _narrowed(plan.shape(node.outputs[0]), tokens)
            node.replace_input_with(1, nodes.integers(*(size if isinstance(size, int) else -1 for size in shape)))
    state = product.inputs[1]
    assert state is not None
    pooled = nodes.op("Mul", state, some)
    pooled.type, pooled.shape = product.outputs[0].type, product.outputs[0].shape
    graph.insert_before(product, nodes.close())
    ir.convenience.replace_all_uses_with(product.outputs[0], pooled)
    graph.remove(product, safe=True)
    graph.sort()
    RemoveUnusedNodesPass()(model)


def _choose(
    nodes: Nodes, value: ir.Value, shape: Shape, tokens: Tokens, position: ir.Value, masks: PooledMasks
) -> ir.Value:
    """Add one token of each text of a value: size 1 at the axis of tokens, or [batch, ...] of tokens of all texts."""
    if value in masks.masks and tokens == Tokens(2):
        return masks.row(nodes, value, position)
    if tokens.flat:
        first = nodes.op("Mul", masks.texts(nodes), masks.length(nodes))
        return nodes.op("Gather", value, nodes.op("Add", position, first), axis=0)
    order = [0, tokens.axis, *(axis for axis in range(1, len(shape)) if axis != tokens.axis)]
    back = [order.index(axis) for axis in range(len(shape))]
    if shape[0] == 1:  # the same for all texts
        chosen = nodes.op("Gather", value, position, axis=tokens.axis)
        swapped = list(range(len(shape)))
        swapped[0], swapped[tokens.axis] = tokens.axis, 0
        result = nodes.op("Transpose", chosen, perm=swapped)
    else:
        turned = value if tokens.axis == 1 else nodes.op("Transpose", value, perm=order)
        row = nodes.op("GatherND", turned, nodes.op("Unsqueeze", position, nodes.integers(1)), batch_dims=1)
        result = nodes.op("Unsqueeze", row, nodes.integers(1))
        result = result if tokens.axis == 1 else nodes.op("Transpose", result, perm=back)
    if value.shape is not None:
        result.type, result.shape = value.type, _narrowed(shape, tokens)
    return result


def _narrowed(shape: Shape, tokens: Tokens) -> ir.Shape:
    """Return the shape of a value with one token of each text."""
    sizes = [1 if axis == tokens.axis and not tokens.flat else size for axis, size in enumerate(shape)]
    return ir.Shape(["batch_size", *sizes[1:]])
