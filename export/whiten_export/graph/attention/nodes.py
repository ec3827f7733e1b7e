"""Build nodes for one place of a graph, or for a graph inside a node, with names that say where they are."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from whiten_export.graph.builder import constant


class Nodes:
    """Collects nodes, named `PREFIX.N`, for a graph or a graph inside one of its nodes."""

    def __init__(self, graph: ir.Graph, prefix: str) -> None:
        self._graph, self.prefix = graph, prefix
        self._tape = Tape()

    def op(self, kind: str, *inputs: ir.Value | None, **attributes: int | float | Sequence[int]) -> ir.Value:
        """Add a node with one output."""
        return self._tape.op(kind, list(inputs), dict(attributes) or None)

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
