"""OpenAI's routes: every form of input, every format of vectors, and what is refused."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.asgi import asked
from support.vectors import assert_near
from whiten import Encoder
from whiten_serving import AsyncEncoder

ROUTE = "/v1/embeddings"
TEXTS = ["A first sentence.", "", "Ein zweiter Satz über Käse 🧀", "word " * 300]


def vectors_of(answer: Any) -> np.ndarray:
    assert answer.status == 200, answer.body
    return np.array([one["embedding"] for one in answer.json()["data"]], np.float32)


@pytest.mark.parametrize("path", [ROUTE, "/embeddings", "/openai/deployments/any/embeddings"])
def test_vectors_are_those_of_the_encoder(app: Any, reference: Encoder, path: str) -> None:
    answer = asked(app, "POST", path, {"input": TEXTS, "model": "whatever"})
    found = answer.json()
    assert_near(vectors_of(answer), reference.encode(TEXTS))
    assert [one["index"] for one in found["data"]] == [0, 1, 2, 3]
    assert {one["object"] for one in found["data"]} == {"embedding"}
    assert (found["object"], found["model"]) == ("list", "tiny")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(answer.body))
    limit = reference.max_seq_length
    tokens = sum(min(count, limit) for count in reference.token_count(TEXTS))
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer.headers["x-whiten-truncated"] == "1"


def test_one_string_is_one_vector(app: Any, reference: Encoder) -> None:
    found = vectors_of(asked(app, "POST", ROUTE, {"input": "One text."}))
    assert_near(found, reference.encode(["One text."]))


def test_base64_is_little_endian_float32(app: Any, reference: Encoder) -> None:
    answer = asked(app, "POST", ROUTE, {"input": TEXTS, "encoding_format": "base64", "precision": "float32"})
    rows = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in answer.json()["data"]]
    assert_near(np.stack(rows), reference.encode(TEXTS))


def test_dimensions(app: Any, reference: Encoder) -> None:
    found = vectors_of(asked(app, "POST", ROUTE, {"input": TEXTS, "dimensions": 5}))
    assert_near(found, reference.encode(TEXTS, truncate_dim=5))


def test_normalize(app: Any, reference: Encoder) -> None:
    found = vectors_of(asked(app, "POST", ROUTE, {"input": TEXTS, "normalize": True}))
    assert_near(found, reference.encode(TEXTS, normalize_embeddings=True))


def test_the_operator_chooses_normalize_and_a_request_has_the_last_word(app_with: Any, reference: Encoder) -> None:
    app = app_with(normalize=True)
    unit = vectors_of(asked(app, "POST", ROUTE, {"input": TEXTS}))
    assert_near(unit, reference.encode(TEXTS, normalize_embeddings=True))
    raw = vectors_of(asked(app, "POST", ROUTE, {"input": TEXTS, "normalize": False}))
    assert_near(raw, reference.encode(TEXTS))


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_precisions(app: Any, reference: Encoder, precision: Any) -> None:
    """In base64 they are refused: openai-python asks for it by itself, and reads the bytes as float32."""
    wanted = reference.encode(TEXTS, precision=precision)
    answer = asked(app, "POST", ROUTE, {"input": TEXTS, "precision": precision})
    found = np.array([one["embedding"] for one in answer.json()["data"]])
    assert np.abs(found - wanted).max() <= (1 if precision.endswith("int8") else 0)
    answer = asked(app, "POST", ROUTE, {"input": TEXTS, "precision": precision, "encoding_format": "base64"})
    error = answer.json()["error"]
    assert (answer.status, error["code"], error["param"]) == (400, "unsupported_value", "encoding_format")
    assert f"precision is {precision}" in error["message"]
    assert 'encoding_format="float"' in error["message"]


def test_int8_bundles_too(golden: Path) -> None:
    with Encoder(golden / "bundle-v1-int8") as encoder:
        batched = AsyncEncoder(encoder)
        found = vectors_of(asked(batched.asgi_app(), "POST", ROUTE, {"input": TEXTS}))
        assert_near(found, encoder.encode(TEXTS))
        asyncio.run(batched.close())


def test_many_texts_are_written_in_parts(app: Any, reference: Encoder) -> None:
    texts = [f"Text number {index}." for index in range(2048)]
    answer = asked(app, "POST", ROUTE, {"input": texts})
    assert_near(vectors_of(answer), reference.encode(texts))
    assert [one["index"] for one in answer.json()["data"]] == list(range(2048))


def test_long_texts_are_refused_where_the_operator_says_so(app_with: Any, reference: Encoder) -> None:
    app = app_with(on_long="error")
    assert asked(app, "POST", ROUTE, {"input": TEXTS}).status == 400
    found = vectors_of(asked(app, "POST", ROUTE, {"input": TEXTS, "truncate": "END"}))
    assert_near(found, reference.encode(TEXTS))


def test_a_side_of_truncation_that_is_not_the_models_is_taken_where_nothing_is_cut(app: Any) -> None:
    assert asked(app, "POST", ROUTE, {"input": TEXTS[:3], "truncate": "START"}).status == 200


def test_models(app: Any) -> None:
    listed = asked(app, "GET", "/v1/models").json()
    assert listed["object"] == "list"
    assert asked(app, "GET", "/models").json() == listed
    assert [(one["id"], one["object"]) for one in listed["data"]] == [("tiny", "model")]
    assert asked(app, "GET", "/v1/models/tiny").json() == listed["data"][0]
    missing = asked(app, "GET", "/v1/models/org/other")
    assert (missing.status, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_the_body_is_plain_json(app: Any) -> None:
    answer = asked(app, "POST", ROUTE, json.dumps({"input": "é"}, ensure_ascii=False).encode())
    assert answer.status == 200
    assert asked(app, "POST", ROUTE, {"input": "é"}).json()["data"] == answer.json()["data"]
