"""Test the scan of a graph's file, and that operators and parts that a bundle may not have are refused by name."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from support.bundles import edit_graph
from whiten import BundleError, Encoder, UnsafeModelError
from whiten_runtime.bundle.graph import scan_graph


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.graph.node[0].attribute.add(name="v").sparse_tensor.dims.append(1),
        lambda model: model.graph.node[0].attribute.add(name="v").sparse_tensors.add(),
        *(
            lambda model, domain=domain: model.graph.node.add(op_type="Add", domain=domain, output=["z"])
            for domain in ("AI.ONNX", "com.microsoft.nchwc", "\0")
        ),
    ],
)
def test_sparse_attributes_and_other_domains_are_refused(
    bundle: Path, change: Callable[[onnx.ModelProto], object]
) -> None:
    edit_graph(bundle, change)
    with pytest.raises(UnsafeModelError):
        Encoder(bundle)


def _operators(graph: onnx.GraphProto) -> set[tuple[str, str]]:
    found = set()
    for node in graph.node:
        found.add((node.domain, node.op_type))
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                found |= _operators(inner)
    return found


def _branching_model() -> onnx.ModelProto:
    """Return a graph with a subgraph, a foreign operator inside it, and weights outside the file."""
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    weights = helper.make_tensor("w", TensorProto.FLOAT, [2], np.ones(2, np.float32).tobytes(), raw=True)
    outside = onnx.TensorProto(name="v", data_type=TensorProto.FLOAT, dims=[2])
    outside.data_location = TensorProto.EXTERNAL
    for key, text in (("location", "../../etc/passwd"), ("offset", "0")):
        outside.external_data.add(key=key, value=text)
    then = helper.make_graph([helper.make_node("Evil", ["w"], ["y"], domain="evil.example")], "then", [], [value])
    other = helper.make_graph([helper.make_node("Identity", ["v"], ["y"])], "else", [], [value], [outside])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    return helper.make_model(helper.make_graph([node], "main", [condition], [value], [weights]))


def test_agrees_with_the_onnx_package_on_an_exported_graph(tiny_bundle: Path) -> None:
    path = tiny_bundle / "onnx" / "model.onnx"
    scan = scan_graph(path)
    assert scan.operators == _operators(onnx.load(path).graph)
    assert not scan.external_files


def test_subgraphs_are_scanned(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(_branching_model().SerializeToString())
    scan = scan_graph(path)
    assert scan.operators == {("", "If"), ("evil.example", "Evil"), ("", "Identity")}
    assert scan.external_files == {"../../etc/passwd"}
    assert scan.nested == {"If"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.data())
def test_truncated_or_altered_graph_is_scanned_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(_branching_model().SerializeToString())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] = data.draw(st.integers(0, 255))
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(content[: data.draw(st.integers(1, len(content)))]))
    try:
        scan_graph(path)
    except BundleError as error:
        assert str(path) in str(error)


def _field(number: int, payload: bytes) -> bytes:
    length = b""
    size = len(payload)
    while size >= 0x80:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + payload


def test_deeply_nested_graph_is_refused(tmp_path: Path) -> None:
    """protobuf does not write such a graph: nodes in attributes of nodes, 5,000 levels deep."""
    graph = b""
    for _ in range(5000):
        graph = _field(1, _field(4, b"If") + _field(5, _field(6, graph)))
    path = tmp_path / "model.onnx"
    path.write_bytes(_field(7, graph))
    with pytest.raises(BundleError, match="not an ONNX model"):
        scan_graph(path)


TAGS = [b"\xba\x80\x80\x80\x10", b"\xba\x80\x00", b"\x00", b"\xff\xff\xff\xff\xff\x7f"]
BROKEN = [b"\x0b", b"\x69\x00\x00"]  # a kind of field that is none, and a number of 8 bytes of which 7 are there


@pytest.mark.parametrize("tag", [*TAGS, *BROKEN])
def test_field_tags_that_parsers_read_differently_are_refused(tmp_path: Path, tag: bytes) -> None:
    """onnxruntime reads the first tag as field 7, the domain; a scanner that keeps all its bits sees another field."""
    node = _field(4, b"FastGelu") + tag + b"\x0dcom.microsoft"
    path = tmp_path / "model.onnx"
    path.write_bytes(_field(7, _field(1, node)))
    with pytest.raises(BundleError, match="not an ONNX model"):
        scan_graph(path)
