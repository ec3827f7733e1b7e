"""Test float16 weights against numpy, on a small graph."""

import numpy as np
import onnx_ir as ir

from support.graphs import WIDTH, linear_graph, run
from whiten_export.graph.float16 import halve_weights


def test_float16_weights_are_cast_to_float32() -> None:
    model, weights = linear_graph(np.random.default_rng(0))
    assert halve_weights(model) == 2
    assert {value.dtype for value in model.graph.initializers.values()} == {ir.DataType.FLOAT16, ir.DataType.FLOAT}
    x = np.random.default_rng(1).normal(size=(2, 3, WIDTH)).astype(np.float32)
    halved = {name: weights[name].astype(np.float16).astype(np.float32) for name in ("a", "b")}
    want = (x @ halved["a"] + x @ halved["b"]) @ weights["whitening.weight"]
    np.testing.assert_allclose(run(model, x), want, rtol=1e-4, atol=1e-2)
    assert [value.name for value in model.graph.outputs] == ["y"]
    assert not {"a", "b"} & set(model.graph.initializers)
