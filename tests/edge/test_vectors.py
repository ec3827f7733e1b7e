"""Test the vectors of the JavaScript client in Node: those of Python's Encoder."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.edge import TEXTS, Call, difference
from whiten_runtime import Encoder, VectorWhitener

pytestmark = pytest.mark.slow

NAMES = ["fp32", "fp16", "int8", "both", "lookup", "cls", "last", "sif", "embeddinggemma", "instructor"]
Bundles = Callable[[str], Path]


@pytest.mark.parametrize("name", [*NAMES, "multilingual-e5-base"])
def test_vectors_and_proof(name: str, bundle: Bundles, client: Call) -> None:
    path = bundle(name)
    vectors, alone, proof = client(path, ("encode", TEXTS), ("encode", TEXTS[0]), ("verify",))
    with Encoder(path) as encoder:
        want = encoder.encode(TEXTS)
        agreement = encoder.verify()
        assert difference(vectors, want) <= 1e-6
        assert difference([alone], want[:1]) <= 1e-6
    assert proof["vectors"] == agreement.vectors
    assert abs(proof["minCosine"] - agreement.min_cosine) <= 1e-7
    assert abs(proof["maxDifference"] - agreement.max_difference) <= 1e-5


def test_no_int8_vector_depends_on_its_neighbours(bundle: Bundles, client: Call) -> None:
    texts = TEXTS[:60]
    together, *alone = client(bundle("int8"), ("encode", texts), *(("encode", text) for text in texts))
    assert difference(together, alone) <= 1e-6  # the rounding of float32 at the end of the graph


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fp32", {"normalize": True}),
        ("fp32", {"truncateDim": 8}),
        ("fp32", {"truncateDim": 8, "normalize": True, "batchSize": 3}),
        ("embeddinggemma", {"promptName": "query"}),
        ("embeddinggemma", {"prompt": "title: none | text: "}),
        ("embeddinggemma", {"prompt": "around {text}, {text} $& and $1"}),
        ("instructor", {"prompt": "Represent the sentence for retrieval: "}),
        ("instructor", {"prompt": "long " * 60}),
        ("multilingual-e5-base", {"promptName": "query"}),
    ],
    ids=str,
)
def test_options(name: str, options: dict[str, Any], bundle: Bundles, client: Call) -> None:
    named = {
        "truncateDim": "truncate_dim",
        "normalize": "normalize_embeddings",
        "promptName": "prompt_name",
        "batchSize": "batch_size",
    }
    path = bundle(name)
    (vectors,) = client(path, ("encode", TEXTS, options))
    with Encoder(path) as encoder:
        want = encoder.encode(TEXTS, **{named.get(key, key): value for key, value in options.items()})
        plain = encoder.encode(TEXTS)
    assert difference(vectors, want) <= 1e-6
    assert want.shape != plain.shape or difference(vectors, plain) > 1e-3  # the options change something


@pytest.mark.parametrize("name", ["embeddinggemma", "instructor", "fp32"])
def test_queries_and_documents(name: str, bundle: Bundles, client: Call) -> None:
    path, texts = bundle(name), TEXTS[:20]
    found = client(
        path,
        ("encodeQuery", texts),
        ("encodeDocument", texts),
        ("encodeQuery", texts, {"prompt": "own: ", "normalize": True}),
        ("encodeQuery", texts[0]),
    )
    with Encoder(path) as encoder:
        want = [
            encoder.encode_query(texts),
            encoder.encode_document(texts),
            encoder.encode_query(texts, prompt="own: ", normalize_embeddings=True),
        ]
    for got, reference in zip(found, want, strict=False):
        assert difference(got, reference) <= 1e-6
    assert difference([found[3]], want[0][:1]) <= 1e-6


def test_a_default_template_stays_and_a_route_is_one_way(golden: Path, tmp_path: Path, client: Call) -> None:
    changes = (
        {"prompts": {"angle": 'of "{text}":', "sts": "similar: "}, "default_prompt_name": "angle"},
        {"prompts": {"angle": 'of "{text}":', "sts": "similar: "}, "default_prompt_name": "sts"},
    )
    for index, change in enumerate(changes):
        path = edited(golden / "bundle-v1", tmp_path / str(index), change)
        query, document, plain = client(path, ("encodeQuery", "a"), ("encodeDocument", "a"), ("encode", "a"))
        with Encoder(path) as encoder:
            want = [encoder.encode_query("a"), encoder.encode_document("a"), encoder.encode("a")]
        assert difference([query, document, plain], want) <= 3e-6
    path = edited(golden / "bundle-v1", tmp_path / "route", {"route": "query"})
    query, refused = client(path, ("encodeQuery", "a"), ("encodeDocument", "a"))
    assert len(query) == 32
    assert refused["error"] == "UsageError"
    assert "holds the route query" in refused["message"]


def edited(bundle: Path, copy: Path, change: dict[str, Any]) -> Path:
    shutil.copytree(bundle, copy)
    manifest = json.loads((copy / "whiten.json").read_text("utf-8")) | change
    (copy / "whiten.json").write_text(json.dumps(manifest | {"space": None, "manifest_sha256": None}), "utf-8")
    (copy / "config_sentence_transformers.json").write_text("{}", "utf-8")  # for other programs, which may change it
    return copy


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
@pytest.mark.parametrize("options", [{}, {"normalize": True, "truncateDim": 9}], ids=["whole", "cut"])
def test_codes(precision: Any, options: dict[str, Any], bundle: Bundles, client: Call) -> None:
    path = bundle("fp32")
    (codes,) = client(path, ("encode", TEXTS, options | {"precision": precision}))
    with Encoder(path) as encoder:
        cut = {"normalize_embeddings": True, "truncate_dim": 9} if options else {}
        want = encoder.encode(TEXTS, precision=precision, **cut)
    assert np.shape(codes) == want.shape
    assert (np.asarray(codes) != want).mean() < 2e-3  # where float32 lies at the boundary of a step
    if precision.endswith("int8"):
        assert np.abs(np.asarray(codes) - want.astype(int)).max() <= 1


def test_codes_of_given_ranges(bundle: Bundles, client: Call) -> None:
    path = bundle("fp32")
    with Encoder(path) as encoder:
        ranges = encoder.ranges() * 0.2
        want = encoder.encode(TEXTS, precision="int8", ranges=ranges)
    (codes,) = client(path, ("encode", TEXTS, {"precision": "int8", "ranges": ranges.tolist()}))
    assert (np.asarray(codes) != want).mean() < 2e-3
    assert {-128, 127} <= set(np.unique(codes))


def test_int8_vectors(bundle: Bundles, client: Call) -> None:
    path = bundle("int8-vectors")
    vectors, codes, proof = client(path, ("encode", TEXTS), ("encode", TEXTS, {"precision": "int8"}), ("verify",))
    assert vectors == codes
    with Encoder(path) as encoder:
        want = encoder.encode(TEXTS, precision="int8")
    assert (np.asarray(codes) != want).mean() < 1e-3
    assert proof["stepped"] < 0.01


@pytest.mark.parametrize("name", ["bundle-v1-vectors", "bundle-v1-vectors-int8"])
def test_vectors_that_are_whitened(name: str, golden: Path, client: Call) -> None:
    with VectorWhitener(golden / name) as whitener:
        rows = np.random.default_rng(0).normal(size=(50, whitener.width)).astype(np.float32)
        want = whitener.transform(rows)
    vectors, proof, refused, bad = client(
        golden / name, ("transform", rows.tolist()), ("verify",), ("encode", "a"), ("transform", [[1, 2]])
    )
    assert difference(vectors, want) <= (1e-6 if "int8" not in name else 0.02)
    assert proof["minCosine"] > 0.98
    assert refused == {"error": "UsageError", "message": "this bundle takes vectors, not texts; call transform"}
    assert bad["error"] == "UsageError"
    assert "has 2 numbers" in bad["message"]


def test_golden_bundles_open(golden: Path, client: Call) -> None:
    """Bundles of the first version have a manifest with fewer fields. Their last coordinates, of 32, are rounding."""
    for name in ("bundle-v1", "bundle-v1-int8"):
        vectors, proof = client(golden / name, ("encode", TEXTS), ("verify",))
        with Encoder(golden / name) as encoder:
            assert difference(vectors, encoder.encode(TEXTS)) <= 3e-6, proof
