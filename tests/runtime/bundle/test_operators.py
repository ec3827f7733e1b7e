"""Test which operators and parts a graph may have, and that all others are refused by name in one line."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from support.bundles import copy_bundle, edit_manifest, rewrite_file
from whiten import Encoder, UnsafeModelError
from whiten_runtime.bundle.bundle import MODEL_FILE, open_bundle
from whiten_runtime.bundle.graph import ALLOWED, FUSED_OPERATORS, HARMLESS, WRITTEN, GraphScan, scan_graph, unwanted

STANDARD = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
NEWER = {"LinearAttention", "CausalConvWithState", "CumProd", "BitCast", "SwiGLU", "Swish"}
"""Operators that older versions of the onnx package do not know."""

CONTROL = {"If", "Loop", "Scan", "SequenceMap"}
RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
OTHER_TYPES = {
    *("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch", "TfIdfVectorizer", "ImageDecoder"),
    *("Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt", "SequenceConstruct", "SequenceEmpty"),
    *("SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence", "ConcatFromSequence"),
}


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return copy_bundle(tiny_bundle, tmp_path)


def rewrite(bundle: Path, change: Callable[[onnx.ModelProto], object]) -> None:
    model = onnx.load(bundle / MODEL_FILE)
    change(model)
    rewrite_file(bundle, MODEL_FILE, model.SerializeToString())


def refused(bundle: Path, match: str) -> None:
    with pytest.raises(UnsafeModelError, match=match) as caught:
        Encoder(bundle)
    assert "\n" not in str(caught.value)
    assert "use a graph written by whiten-export" in str(caught.value)


def test_listed_operators_are_of_the_standard() -> None:
    assert not WRITTEN & HARMLESS
    assert WRITTEN | HARMLESS <= STANDARD | NEWER


def test_control_flow_random_numbers_and_other_types_are_on_no_list() -> None:
    for allowed in ALLOWED.values():
        assert not {name for _, name in allowed} & (CONTROL | RANDOM | OTHER_TYPES)


@pytest.mark.parametrize("operator", sorted(STANDARD - WRITTEN - HARMLESS))
def test_every_other_operator_of_the_standard_is_refused_by_name(bundle: Path, operator: str) -> None:
    rewrite(bundle, lambda model: model.graph.node.add(op_type=operator, output=["z"]))
    refused(bundle, f"has operator {operator}, which a bundle for cpu may not use")


@pytest.mark.parametrize("operator", sorted(FUSED_OPERATORS))
def test_fused_operators_are_for_cuda_alone(bundle: Path, operator: str) -> None:
    rewrite(bundle, lambda model: model.graph.node.add(op_type=operator, domain="com.microsoft", output=["z"]))
    refused(bundle, f"operator com.microsoft::{operator}, which a bundle for cpu may not use")
    edit_manifest(bundle, lambda manifest: manifest.update(target="cuda"))
    assert open_bundle(bundle).manifest.target == "cuda"


def test_onnxruntime_has_an_operator_of_its_own_in_the_standards_domain() -> None:
    scan = GraphScan(operators={("", "SimplifiedLayerNormalization")})
    assert unwanted(scan, "cuda") is None
    assert unwanted(scan, "cpu") == "operator SimplifiedLayerNormalization, which a bundle for cpu may not use"


@pytest.mark.parametrize("domain", ["ai.onnx.ml", "evil", "com.microsoft.nchwc", "AI.ONNX", "\0"])
def test_other_domains_are_refused(bundle: Path, domain: str) -> None:
    rewrite(bundle, lambda model: model.graph.node.add(op_type="Add", domain=domain, output=["z"]))
    refused(bundle, "::Add, which a bundle for cpu may not use")


def subgraph(model: onnx.ModelProto) -> None:
    attribute = model.graph.node[0].attribute.add(name="body", type=onnx.AttributeProto.GRAPH)
    attribute.g.node.add(op_type="Identity")


def subgraphs(model: onnx.ModelProto) -> None:
    attribute = model.graph.node[0].attribute.add(name="body", type=onnx.AttributeProto.GRAPHS)
    attribute.graphs.add().node.add(op_type="Identity")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (subgraph, "a graph inside a node"),
        (subgraphs, "a graph inside a node"),
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
    rewrite(bundle, change)
    refused(bundle, f"has {what}.*, which a bundle may not have")


def test_dropout_is_allowed_where_it_does_nothing(bundle: Path) -> None:
    node = {"op_type": "Dropout", "input": ["sentence_embedding", ""], "output": ["z"]}
    rewrite(bundle, lambda model: model.graph.node.add(**node))
    with Encoder(bundle) as encoder:
        assert encoder.encode("a text").shape == (32,)
    rewrite(bundle, lambda model: model.graph.node[-1].input.append("train"))
    refused(bundle, "operator Dropout with training_mode")


@pytest.mark.parametrize(
    "name", ["bundle-v1", "bundle-v1-int8", "bundle-v1-published", "bundle-v1-vectors", "bundle-v1-vectors-int8"]
)
def test_operators_of_golden_bundles_are_those_that_exports_write(golden: Path, name: str) -> None:
    scan = scan_graph(golden / name / MODEL_FILE)
    assert {operator for _, operator in scan.operators} <= WRITTEN
    assert not scan.parts
