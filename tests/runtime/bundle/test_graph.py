"""Test the scan of a graph's file, and that operators and parts that a bundle may not have are refused by name."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from support.bundles import edit_graph, edit_manifest
from whiten import BundleError, Encoder, UnsafeModelError
from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.graph import ALLOWED, FUSED_OPERATORS, HARMLESS, WRITTEN, GraphScan, scan_graph, unwanted

STANDARD = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
NEWER = {"LinearAttention", "CausalConvWithState", "CumProd", "BitCast", "SwiGLU", "Swish", "TensorScatter"}
"""Operators that older versions of the onnx package do not know."""

ENDLESS = {"Loop", "SequenceMap"}
RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
OTHER_TYPES = {
    *("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch", "TfIdfVectorizer", "ImageDecoder"),
    *("Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt", "SequenceConstruct", "SequenceEmpty"),
    *("SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence", "ConcatFromSequence"),
}


def refused(bundle: Path, match: str) -> None:
    with pytest.raises(UnsafeModelError, match=match) as caught:
        Encoder(bundle)
    assert "\n" not in str(caught.value)
    assert "use a graph written by whiten-export" in str(caught.value)


def test_listed_operators_are_of_the_standard() -> None:
    assert not WRITTEN & HARMLESS
    assert WRITTEN | HARMLESS <= STANDARD | NEWER


def test_loops_random_numbers_and_other_types_are_on_no_list() -> None:
    for allowed in ALLOWED.values():
        assert not {name for _, name in allowed} & (ENDLESS | RANDOM | OTHER_TYPES)


@pytest.mark.parametrize("operator", sorted(STANDARD - WRITTEN - HARMLESS))
def test_every_other_operator_of_the_standard_is_refused_by_name(bundle: Path, operator: str) -> None:
    edit_graph(bundle, lambda model: model.graph.node.add(op_type=operator, output=["z"]))
    refused(bundle, f"has operator {operator}, which a bundle for cpu may not use")


@pytest.mark.parametrize("operator", sorted(FUSED_OPERATORS))
def test_fused_operators_are_for_cuda_alone(bundle: Path, operator: str) -> None:
    edit_graph(bundle, lambda model: model.graph.node.add(op_type=operator, domain="com.microsoft", output=["z"]))
    refused(bundle, f"operator com.microsoft::{operator}, which a bundle for cpu may not use")
    edit_manifest(bundle, lambda manifest: manifest.update(target="cuda"))
    assert open_bundle(bundle).manifest.target == "cuda"


def test_onnxruntime_has_an_operator_of_its_own_in_the_standards_domain() -> None:
    scan = GraphScan(operators={("", "SimplifiedLayerNormalization")})
    assert unwanted(scan, "cuda") is None
    assert unwanted(scan, "cpu") == "operator SimplifiedLayerNormalization, which a bundle for cpu may not use"


@pytest.mark.parametrize("domain", ["ai.onnx.ml", "evil", "com.microsoft.nchwc", "AI.ONNX", "\0"])
def test_other_domains_are_refused(bundle: Path, domain: str) -> None:
    edit_graph(bundle, lambda model: model.graph.node.add(op_type="Add", domain=domain, output=["z"]))
    refused(bundle, "::Add, which a bundle for cpu may not use")


def subgraph(model: onnx.ModelProto) -> None:
    attribute = model.graph.node[0].attribute.add(name="body", type=onnx.AttributeProto.GRAPH)
    attribute.g.node.add(op_type="Identity")


def nested(*operators: str) -> Callable[[onnx.ModelProto], None]:
    """Return a change that adds a node with a graph inside, in which there is the next one, and so on."""

    def change(model: onnx.ModelProto) -> None:
        graph = model.graph
        for operator in operators:
            node = graph.node.add(op_type=operator, output=["z"])
            graph = node.attribute.add(name="body", type=onnx.AttributeProto.GRAPH).g
        graph.node.add(op_type="Identity", input=["x"], output=["y"])

    return change


def subgraphs(model: onnx.ModelProto) -> None:
    attribute = model.graph.node[0].attribute.add(name="body", type=onnx.AttributeProto.GRAPHS)
    attribute.graphs.add().node.add(op_type="Identity")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (subgraph, "a graph inside [A-Z][A-Za-z]+"),
        (subgraphs, "a list of graphs inside a node"),
        (nested("Identity"), "a graph inside Identity"),
        (nested("Scan", "Scan"), "a graph inside Scan inside Scan"),
        (nested("Scan", "If"), "a graph inside Scan inside If"),
        (nested("If", "If"), "a graph inside If inside If"),
        (nested("If", "Scan", "Scan"), "a graph inside If inside Scan inside Scan"),
        (lambda model: model.functions.add(name="f", domain="x"), "a model-local function"),
        (lambda model: model.training_info.add(), "training information"),
        (lambda model: model.graph.sparse_initializer.add(), "sparse weights"),
        (lambda model: model.graph.node[0].attribute.add(name="v").sparse_tensor.dims.append(1), "a sparse tensor"),
        (lambda model: model.graph.node[0].attribute.add(name="v").sparse_tensors.add(), "a sparse tensor"),
    ],
)
def test_parts_that_no_export_writes_are_refused(
    bundle: Path, change: Callable[[onnx.ModelProto], object], what: str
) -> None:
    edit_graph(bundle, change)
    refused(bundle, f"has {what}.*, which a bundle may not have")


@pytest.mark.parametrize("operators", [("If",), ("Scan",), ("If", "Scan")])
def test_graphs_inside_if_and_scan_are_allowed_and_scanned(bundle: Path, operators: tuple[str, ...]) -> None:
    edit_graph(bundle, nested(*operators))
    assert open_bundle(bundle).manifest.target == "cpu"
    edit_graph(bundle, nested(*operators, "Loop"))
    refused(bundle, "operator Loop, which a bundle for cpu may not use")


def test_dropout_is_allowed_where_it_does_nothing(bundle: Path) -> None:
    node = {"op_type": "Dropout", "input": ["sentence_embedding", ""], "output": ["z"]}
    edit_graph(bundle, lambda model: model.graph.node.add(**node))
    with Encoder(bundle) as encoder:
        assert encoder.encode("a text").shape == (32,)
    edit_graph(bundle, lambda model: model.graph.node[-1].input.append("train"))
    refused(bundle, "operator Dropout with training_mode")


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
