"""Make small graphs of products with constant weights, and run them."""

import numpy as np
import onnx_ir as ir

from support.default_sessions import default_session

WIDTH, INNER = 96, 64


def linear_graph(generator: np.random.Generator) -> tuple[ir.Model, dict[str, np.ndarray]]:
    """Return a graph and its weights: two MatMuls of one value, their sum, and a third with the whitening's name."""
    weights = {
        "a": generator.normal(size=(WIDTH, INNER)).astype(np.float32),
        "b": generator.normal(size=(WIDTH, INNER)).astype(np.float32),
        "whitening.weight": generator.normal(size=(INNER, INNER)).astype(np.float32),
    }
    text = f"""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[n, s, {WIDTH}] x) => (float[n, s, {INNER}] y)
    <float[{WIDTH}, {INNER}] a, float[{WIDTH}, {INNER}] b, float[{INNER}, {INNER}] whitening_weight>
    {{ p = MatMul(x, a)
       q = MatMul(x, b)
       z = Add(p, q)
       y = MatMul(z, whitening_weight) }}
    """
    model = ir.from_onnx_text(text)
    for value in list(model.graph.inputs)[1:]:
        model.graph.inputs.remove(value)
    for name, array in weights.items():
        value = next(v for node in model.graph for v in node.inputs if v and v.name == name.replace(".", "_"))
        value.const_value = ir.tensor(array, name=name)
        if value.name in model.graph.initializers:
            del model.graph.initializers[value.name]
        value.name = name
        model.graph.register_initializer(value)
    return model, weights


def run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    session = default_session(ir.to_proto(model).SerializeToString())
    (y,) = session.run(None, {"x": x})
    return np.asarray(y)


def count(model: ir.Model, operator: str) -> int:
    return sum(node.op_type == operator for node in model.graph)
