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
    answer = asked(app, "POST", ROUTE, {"input": TEXTS, "encoding_format": "base64", "user": "someone"})
    rows = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in answer.json()["data"]]
    assert_near(np.stack(rows), reference.encode(TEXTS))


@pytest.mark.parametrize("name", ["dimensions", "output_dimension"])
def test_dimensions(app: Any, reference: Encoder, name: str) -> None:
    found = vectors_of(asked(app, "POST", ROUTE, {"input": TEXTS, name: 5}))
    assert_near(found, reference.encode(TEXTS, truncate_dim=5))


@pytest.mark.parametrize("name", ["normalize", "normalized"])
def test_normalize(app: Any, reference: Encoder, name: str) -> None:
    found = vectors_of(asked(app, "POST", ROUTE, {"input": TEXTS, name: True}))
    assert_near(found, reference.encode(TEXTS, normalize_embeddings=True))


def test_the_operator_chooses_normalize_and_a_request_has_the_last_word(app_with: Any, reference: Encoder) -> None:
    app = app_with(normalize=True)
    unit = vectors_of(asked(app, "POST", ROUTE, {"input": TEXTS}))
    assert_near(unit, reference.encode(TEXTS, normalize_embeddings=True))
    raw = vectors_of(asked(app, "POST", ROUTE, {"input": TEXTS, "normalize": False}))
    assert_near(raw, reference.encode(TEXTS))


@pytest.mark.parametrize("name", ["precision", "encoding_dtype", "embed_dtype", "output_dtype", "embedding_type"])
@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_precisions(app: Any, reference: Encoder, name: str, precision: Any) -> None:
    wanted = reference.encode(TEXTS, precision=precision)
    answer = asked(app, "POST", ROUTE, {"input": TEXTS, name: precision})
    found = np.array([one["embedding"] for one in answer.json()["data"]])
    assert np.abs(found - wanted).max() <= (1 if precision.endswith("int8") else 0)


@pytest.mark.parametrize("name", ["precision", "encoding_dtype", "embed_dtype", "output_dtype", "embedding_type"])
@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_a_precision_in_base64_is_refused_because_clients_read_float32(app: Any, name: str, precision: str) -> None:
    """openai-python asks for base64 by itself, and reads the bytes as float32 whatever they are."""
    answer = asked(app, "POST", ROUTE, {"input": TEXTS, name: precision, "encoding_format": "base64"})
    error = answer.json()["error"]
    assert (answer.status, error["code"], error["param"]) == (400, "unsupported_value", "encoding_format")
    assert f"{name} is {precision}" in error["message"]
    assert 'encoding_format="float"' in error["message"]


@pytest.mark.parametrize("precision", ["float", "float32"])
def test_float32_by_name_is_there_in_base64(app: Any, reference: Encoder, precision: str) -> None:
    body = {"input": TEXTS, "precision": precision, "encoding_format": "base64"}
    rows = [
        np.frombuffer(base64.b64decode(one["embedding"]), "<f4")
        for one in asked(app, "POST", ROUTE, body).json()["data"]
    ]
    assert_near(np.stack(rows), reference.encode(TEXTS))


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


@pytest.mark.parametrize("cut", [{"truncate": False}, {"truncation": False}, {"truncate": "NONE"}])
def test_long_texts_are_refused_where_a_request_says_so(app: Any, cut: dict[str, Any]) -> None:
    answer = asked(app, "POST", ROUTE, {"input": TEXTS, **cut})
    assert (answer.status, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "texts[3]" in answer.json()["error"]["message"]


def test_long_texts_are_refused_where_the_operator_says_so(app_with: Any, reference: Encoder) -> None:
    app = app_with(on_long="error")
    assert asked(app, "POST", ROUTE, {"input": TEXTS}).status == 400
    found = vectors_of(asked(app, "POST", ROUTE, {"input": TEXTS, "truncate": "END"}))
    assert_near(found, reference.encode(TEXTS))


def test_a_side_of_truncation_that_is_not_the_models_is_refused_where_it_matters(app: Any) -> None:
    assert asked(app, "POST", ROUTE, {"input": TEXTS[:3], "truncate": "START"}).status == 200
    answer = asked(app, "POST", ROUTE, {"input": TEXTS, "truncate": "START"})
    assert (answer.status, answer.json()["error"]["code"]) == (400, "unsupported_value")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": []}, "empty_input", "input"),
        ({"input": None}, "invalid_type", "input"),
        ({}, "invalid_type", "input"),
        ({"input": ["a", None]}, "invalid_type", "input"),
        ({"input": ["a", 3]}, "invalid_type", "input"),
        ({"input": [3, "a"]}, "token_ids", "input"),
        ({"input": [["a"]]}, "token_ids", "input"),
        ({"input": [1, 2, 3]}, "token_ids", "input"),
        ({"input": [[1, 2], [3]]}, "token_ids", "input"),
        ({"input": [[]]}, "token_ids", "input"),
        ({"input": ["a", [1]]}, "invalid_type", "input"),
        ({"input": "a", "dimensions": 33}, "dimensions", "dimensions"),
        ({"input": "a", "dimensions": 0}, "invalid_type", "dimensions"),
        ({"input": "a", "dimensions": "5"}, "invalid_type", "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "invalid_type", "encoding_format"),
        ({"input": "a", "precision": "float16"}, "invalid_type", "precision"),
        ({"input": "a", "prompt_name": "query"}, "unsupported_value", "prompt_name"),
        ({"input": "a", "task": "retrieval"}, "unknown_field", "task"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "unknown_field", "truncate_prompt_tokens"),
        ({"input": "a", "dimensions": 3, "output_dimension": 4}, "unsupported_value", "dimensions"),
        ({"input": "a", "precision": "int8", "output_dtype": "uint8"}, "unsupported_value", "precision"),
        ({"input": "a", "truncate": False, "truncation": True}, "unsupported_value", "truncate"),
        ([], "invalid_type", None),
        ("a", "invalid_type", None),
    ],
)
def test_what_is_refused(app: Any, body: object, code: str, param: str | None) -> None:
    answer = asked(app, "POST", ROUTE, body)
    error = answer.json()["error"]
    assert (answer.status, error["code"], error["param"], error["type"]) == (400, code, param, "invalid_request_error")
    assert error["message"]
    assert "\n" not in error["message"]
    assert answer.headers["x-should-retry"] == "false"


def test_the_remedy_for_token_ids_is_named(app: Any) -> None:
    message = asked(app, "POST", ROUTE, {"input": [[1, 2]]}).json()["error"]["message"]
    assert "check_embedding_ctx_length=False" in message


def test_precision_names_that_agree_are_one(app: Any) -> None:
    body = {"input": "a", "precision": "float", "output_dtype": "float32", "embedding_type": "float"}
    assert asked(app, "POST", ROUTE, body).status == 200


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
