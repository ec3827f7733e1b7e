"""Test folders of sentence-transformers with several routes, and those that begin with a table of token vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.module_files import OLD, write_dense, write_json, write_modules, write_pooling, write_tensors
from whiten import UsageError, WhitenError
from whiten_export.sources.checkpoints.module_files import read_static
from whiten_export.sources.checkpoints.published import read_published

TABLE = np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32)


def write_router(folder: Path, name: str = "router_config.json", **routes: list[str]) -> Path:
    """Write a Router whose modules are named QUERY_0_KIND, such as document_1_Pooling."""
    types = {module: OLD + module.rsplit("_", 1)[-1] for modules in routes.values() for module in modules}
    return write_json(folder / name, {"types": types, "structure": routes, "parameters": {"default_route": None}})


@pytest.fixture
def two_networks(tmp_path: Path) -> Path:
    """Queries go through a table, documents through a network and a Dense; both are normalised."""
    write_modules(tmp_path, "Router", "Normalize")
    write_router(
        tmp_path,
        query=["query_0_StaticEmbedding"],
        document=["document_0_Transformer", "document_1_Pooling", "document_2_Dense"],
    )
    write_tensors(tmp_path / "query_0_StaticEmbedding" / "model.safetensors", {"embedding.weight": TABLE})
    write_pooling(tmp_path, path="document_1_Pooling", pooling_mode="cls")
    write_dense(tmp_path / "document_2_Dense", 4, 3)
    return tmp_path


def test_each_route_is_read_as_a_model_of_its_own(two_networks: Path) -> None:
    query, document = (read_published(two_networks, route) for route in ("query", "document"))
    assert (query.route, query.static, query.network) == ("query", True, two_networks / "query_0_StaticEmbedding")
    assert (query.files, query.normalize) == ((two_networks / "query_0_StaticEmbedding" / "model.safetensors",), True)
    assert (document.route, document.static, document.pooling) == ("document", False, "cls")
    assert document.network == two_networks / "document_0_Transformer"
    assert list(map(str, document.modules)) == ["Dense(4 -> 3, Tanh)"]
    assert document.normalize


def test_a_model_with_several_routes_needs_one_named(two_networks: Path) -> None:
    with pytest.raises(UsageError, match="has the routes query, document; name one with --route$"):
        read_published(two_networks)
    with pytest.raises(UsageError, match="has the routes query, document; 'image' is not among them; name one"):
        read_published(two_networks, "image")


def test_a_single_route_need_not_be_named(tmp_path: Path) -> None:
    write_modules(tmp_path, "Router")
    write_router(tmp_path, text=["text_0_Transformer", "text_1_Pooling"])
    write_pooling(tmp_path, path="text_1_Pooling")
    assert read_published(tmp_path).route == read_published(tmp_path, "text").route == "text"


def test_a_route_of_a_model_without_routes_is_refused(tmp_path: Path) -> None:
    write_modules(tmp_path, "Transformer", "Pooling")
    write_pooling(tmp_path)
    with pytest.raises(UsageError, match="route 'query' was asked for, but .* has no Router; leave --route out"):
        read_published(tmp_path, "query")


@pytest.mark.parametrize(("kind", "name"), [("Router", "router_config.json"), ("Asym", "config.json")])
def test_routes_may_follow_the_network(tmp_path: Path, kind: str, name: str) -> None:
    write_modules(tmp_path, "Transformer", "Pooling", kind, "Normalize")
    write_pooling(tmp_path)
    folder = tmp_path / f"2_{kind}"
    write_router(folder, name, query=["query_0_Dense"], doc=["doc_0_Dense"])
    write_dense(folder / "query_0_Dense", 4, 2)
    write_dense(folder / "doc_0_Dense", 4, 3)
    published = read_published(tmp_path, "doc")
    assert (list(map(str, published.modules)), published.normalize) == (["Dense(4 -> 3, Tanh)"], True)
    assert published.files == (folder / "doc_0_Dense" / "model.safetensors",)


def test_routes_may_share_modules(tmp_path: Path) -> None:
    write_modules(tmp_path, "Router")
    write_router(tmp_path, query=["a_Transformer", "b_Pooling"], document=["a_Transformer", "c_Pooling"])
    write_pooling(tmp_path, path="b_Pooling", pooling_mode="cls")
    write_pooling(tmp_path, path="c_Pooling", pooling_mode="mean")
    assert read_published(tmp_path, "query").pooling == "cls"
    assert read_published(tmp_path, "document").pooling == "mean"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"structure": {"query": ["a"]}}, "its structure is not routes with modules of its types"),
        ({"types": {}, "structure": {"query": ["a"]}}, "its structure is not routes"),
        ({"types": {"a": OLD + "Transformer"}, "structure": {}}, "its structure is not routes"),
        ({"types": {"a": OLD + "Transformer"}, "structure": ["a"]}, "its structure is not routes"),
        ({"types": {"a": OLD + "Transformer"}, "structure": {"query": "a"}}, "its structure is not routes"),
        ({"types": {"../a": OLD + "Transformer"}, "structure": {"query": ["../a"]}}, "'../a' leads out of the folder"),
        ({"types": {"/a": OLD + "Transformer"}, "structure": {"query": ["/a"]}}, "'/a' leads out of the folder"),
        ({"types": {"a": "my_code.Transformer"}, "structure": {"query": ["a"]}}, "module 'my_code.Transformer'"),
        ({"types": {"a": OLD + "Pooling"}, "structure": {"query": ["a"]}}, "the first module is Pooling"),
        ({"types": {}, "structure": {"query": []}}, "route 'query' has no module"),
        ({"types": {}}, "the Router has no router_config.json"),
        ([], "holds a list; wanted settings by name"),
    ],
)
def test_broken_routes_are_refused(tmp_path: Path, content: Any, found: str) -> None:
    write_modules(tmp_path, "Router")
    write_json(tmp_path / "router_config.json", content)
    with pytest.raises(WhitenError) as caught:
        read_published(tmp_path)
    assert found in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_static_embedding_is_a_table_and_pools_by_itself(tmp_path: Path) -> None:
    write_modules(tmp_path, "StaticEmbedding", "Normalize", first="0_StaticEmbedding")
    path = write_tensors(tmp_path / "0_StaticEmbedding" / "model.safetensors", {"embedding.weight": TABLE})
    published = read_published(tmp_path)
    assert (published.static, published.pooling, published.normalize, published.files) == (True, "mean", True, (path,))
    table, file = read_static(published.network)
    assert file == path
    np.testing.assert_array_equal(table, TABLE)


@pytest.mark.parametrize("kind", ["Pooling", "WeightedLayerPooling"])
def test_pooling_after_a_static_embedding_is_refused(tmp_path: Path, kind: str) -> None:
    write_modules(tmp_path, "StaticEmbedding", kind)
    write_tensors(tmp_path / "model.safetensors", {"embedding.weight": TABLE})
    with pytest.raises(WhitenError, match=f"module {kind} is not supported here"):
        read_published(tmp_path)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_tables_of_model2vec_may_share_and_weigh_rows(tmp_path: Path, mapped: bool, weighted: bool) -> None:
    tensors = {"embeddings": TABLE.astype(np.float16)}
    want = tensors["embeddings"].astype(np.float32)
    if mapped:
        tensors["mapping"] = np.array([2, 0, 2, 3, 1, 0])
        want = want[tensors["mapping"]]
    if weighted:
        tensors["weights"] = np.linspace(0.5, 2, len(want))
        want = want * tensors["weights"][:, None].astype(np.float32)
    write_tensors(tmp_path / "model.safetensors", tensors)
    table, _ = read_static(tmp_path)
    assert (table.dtype, table.flags.c_contiguous) == (np.float32, True)
    np.testing.assert_array_equal(table, want)


@pytest.mark.parametrize(
    ("tensors", "found"),
    [
        ({}, "has no tensor; wanted embedding.weight"),
        ({"vectors": TABLE}, "has vectors; wanted embedding.weight, or embeddings with mapping and weights"),
        ({"embeddings": TABLE, "bias": TABLE}, "has bias; wanted"),
        ({"embedding.weight": TABLE, "bias": TABLE}, "has the weight 'bias', which is not supported"),
        ({"embedding.weight": TABLE[0]}, "embedding.weight has the shape (3,)"),
        ({"embeddings": TABLE[None]}, "embeddings has the shape (1, 4, 3)"),
        ({"embeddings": TABLE, "mapping": np.array([0, 4])}, "mapping"),
        ({"embeddings": TABLE, "mapping": np.array([0, -1])}, "mapping"),
        ({"embeddings": TABLE, "mapping": np.array([[0, 1]])}, "mapping"),
        ({"embeddings": TABLE, "mapping": np.array([0.0, 1.5])}, "mapping"),
        ({"embeddings": TABLE, "weights": np.ones(3)}, "weights"),
        ({"embeddings": TABLE, "weights": np.ones((4, 1))}, "weights"),
        ({"embeddings": TABLE, "mapping": np.array([0, 1]), "weights": np.ones(4)}, "weights"),
    ],
)
def test_tables_that_make_no_sense_are_refused(tmp_path: Path, tensors: dict[str, np.ndarray], found: str) -> None:
    path = write_tensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(WhitenError) as caught:
        read_static(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert found in str(caught.value)
    assert "\n" not in str(caught.value)
