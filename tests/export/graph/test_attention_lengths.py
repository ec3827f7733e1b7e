"""Test that attention with lengths gives the vectors of onnxruntime's own attention with a bias that hides padding."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray

from support.graphs import graph_of
from whiten_export.graph.builder import save_graph
from whiten_export.graph.fuse_cuda import use_lengths
from whiten_runtime.ort.session import SessionOptions, create_session

VERSION = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
pytestmark = pytest.mark.skipif(VERSION < (1, 25), reason="onnxruntime before 1.25 refuses it or computes it wrongly")

WIDTH, HEADS = 16, 2
GENERATOR = np.random.default_rng(0)

Arrays = dict[str, NDArray[np.float32]]


def layer(weights: Arrays, number: int, attributes: str = "", shared: int | None = None, tail: str = "Add") -> str:
    """Return the text of an attention and the product that follows it; its weights are added to `weights`."""
    key = number if shared is None else shared
    for name, shape in (("w", (WIDTH, 3 * WIDTH)), ("b", (3 * WIDTH,)), ("o", (WIDTH, WIDTH)), ("c", (WIDTH,))):
        weights.setdefault(f"{name}{key}", GENERATOR.normal(size=shape).astype(np.float32) / 2)
    options = f"num_heads = {HEADS}{attributes}"
    before = "x" if number == 0 else f"y{number - 1}"
    text = f"a{number} = com.microsoft.Attention<{options}>({before}, w{key}, b{key}, , , bias) "
    text += f"p{number} = MatMul(a{number}, o{key}) "
    return text + f"y{number} = {tail}(p{number}, c{key}) "


def graph(body: str, last: str, weights: Arrays) -> ir.Model:
    inputs = f"float[n, s, {WIDTH}] x, int64[n, s] attention_mask, float[n, {HEADS}, s, s] bias"
    return graph_of(f"({inputs}) => (float[n, s, {WIDTH}] {last}) {{ {body} }}", weights)


def run(model: ir.Model, path: Path) -> NDArray[np.float32]:
    """Return the states of the real tokens of three texts, one of which has no token."""
    mask = (np.arange(5) < np.array([5, 2, 0])[:, None]).astype(np.int64)
    hidden = np.where(mask[:, None, None, :] == 1, 0, -1e5).astype(np.float32)
    x = np.random.default_rng(1).normal(size=(3, 5, WIDTH)).astype(np.float32)
    feed = {"x": x, "attention_mask": mask, "bias": np.broadcast_to(hidden, (3, HEADS, 5, 5)).copy()}
    save_graph(model, path)
    session = create_session(path, SessionOptions(threads=1))
    (found,) = session.run(None, {value.name: feed[value.name] for value in session.get_inputs()})
    assert np.isfinite(found).all()
    return np.asarray(found[mask == 1])


def attentions(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "Attention"]


def check_replaced(model: ir.Model, folder: Path, bound: float = 2e-4) -> None:
    """Replace attentions, and compare the vectors with those from before."""
    want = run(model, folder / "before.onnx")
    use_lengths(model, attentions(model), lambda bias: True)
    np.testing.assert_allclose(run(model, folder / "after.onnx"), want, rtol=bound, atol=bound)


@pytest.mark.parametrize(
    ("attributes", "tail", "adds"),
    [("", "Add", 2), (", scale = 0.7", "Add", 2), ("", "Mul", 2)],
    ids=["default", "scale", "no bias after the product"],
)
def test_biases_of_keys_and_values_are_folded_where_that_is_exact(
    attributes: str, tail: str, adds: int, tmp_path: Path
) -> None:
    weights: Arrays = {}
    model = graph(layer(weights, 0, attributes, tail=tail), "y0", weights)
    check_replaced(model, tmp_path, 2e-5)
    (node,) = attentions(model)
    assert (node.domain, model.graph.opset_imports[""]) == ("", 24)
    assert sum(node.op_type == "Add" for node in model.graph) == adds  # of queries, and of values or after the product


def test_layers_of_which_only_some_can_be_replaced_keep_their_vectors(tmp_path: Path) -> None:
    weights: Arrays = {}
    body = layer(weights, 0) + layer(weights, 1, ", unidirectional = 0") + layer(weights, 2)
    model = graph(body, "y2", weights)
    check_replaced(model, tmp_path)
    assert [node.domain for node in attentions(model)] == ["", "com.microsoft", ""]


def test_shared_weights_are_held_once_and_nodes_need_no_names(tmp_path: Path) -> None:
    weights: Arrays = {}
    body = layer(weights, 0) + layer(weights, 1, shared=0) + layer(weights, 2)
    model = graph(body, "y2", weights)
    for node in model.graph:
        node.name = ""
    check_replaced(model, tmp_path)
    large = [name for name, value in model.graph.initializers.items() if value.shape == (WIDTH, WIDTH)]
    assert len(large) == 2 + 2 * 3  # two products after attention; queries, keys and values of two sets of weights


def test_bias_that_hides_more_than_padding_is_kept(tmp_path: Path) -> None:
    weights: Arrays = {}
    model = graph(layer(weights, 0), "y0", weights)
    use_lengths(model, attentions(model), lambda bias: False)
    assert attentions(model)[0].inputs[5].name == "bias"
    assert model.graph.opset_imports[""] == 20
