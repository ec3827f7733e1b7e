"""OpenAI's routes: every form of input, every format of vectors, and what is refused. Ollama's routes."""

import base64
import json
from typing import Any

import numpy as np
import pytest

from support.asgi import asked
from support.vectors import assert_near
from whiten import Encoder

ROUTE = "/v1/embeddings"
TEXTS = ["A first sentence.", "", "Ein zweiter Satz über Käse 🧀", "word " * 300]


def vectors_of(answer: Any) -> np.ndarray:
    assert answer.status == 200, answer.body
    return np.array([one["embedding"] for one in answer.json()["data"]], np.float32)


def test_what_an_answer_has_besides_vectors(app: Any, reference: Encoder) -> None:
    answer = asked(app, "POST", ROUTE, {"input": TEXTS, "model": "whatever"})
    found = answer.json()
    assert [one["index"] for one in found["data"]] == [0, 1, 2, 3]
    assert {one["object"] for one in found["data"]} == {"embedding"}
    assert (found["object"], found["model"]) == ("list", "tiny")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(answer.body))
    limit = reference.max_seq_length
    tokens = sum(min(count, limit) for count in reference.token_count(TEXTS))
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer.headers["x-whiten-truncated"] == "1"


def test_base64_is_little_endian_float32(app: Any, reference: Encoder) -> None:
    answer = asked(app, "POST", ROUTE, {"input": TEXTS, "encoding_format": "base64", "precision": "float32"})
    rows = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in answer.json()["data"]]
    assert_near(np.stack(rows), reference.encode(TEXTS))


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


def test_many_texts_are_written_in_parts(app: Any, reference: Encoder) -> None:
    texts = [f"Text number {index}." for index in range(2048)]
    answer = asked(app, "POST", ROUTE, {"input": texts})
    assert_near(vectors_of(answer), reference.encode(texts))
    assert [one["index"] for one in answer.json()["data"]] == list(range(2048))


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


def test_what_an_answer_of_ollama_has_besides_vectors(app: Any) -> None:
    found = asked(app, "POST", "/api/embed", {"input": "a"}).json()
    assert found["model"] == "tiny"
    assert found["prompt_eval_count"] > 0
    assert found["total_duration"] > 0


def test_no_text_has_no_vector_on_ollamas_route(app: Any) -> None:
    assert asked(app, "POST", "/api/embed", {"input": []}).json()["embeddings"] == []


def test_models_are_listed_for_ollama(app: Any) -> None:
    (one,) = asked(app, "GET", "/api/tags").json()["models"]
    assert one["name"] == one["model"] == "tiny:latest"
    assert one["size"] > 0
    assert len(one["digest"]) == 64
    assert one["details"]["format"] == "onnx"


def test_version_for_ollama(app: Any) -> None:
    assert asked(app, "GET", "/api/version").json()["version"]


@pytest.mark.parametrize("options", [{}, {"dimensions": 3}, {"precision": "uint8"}])
@pytest.mark.parametrize("path", [ROUTE, "/openai/v1/embeddings"])
def test_vectors_as_bytes(app: Any, reference: Encoder, options: dict[str, Any], path: str) -> None:
    accept = {"accept": "application/octet-stream"}
    answer = asked(app, "POST", path, {"input": TEXTS} | options, headers=accept)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/octet-stream")
    shape = tuple(map(int, answer.headers["x-whiten-shape"].split(",")))
    found = np.frombuffer(answer.body, answer.headers["x-whiten-dtype"]).reshape(shape)
    wanted = reference.encode(TEXTS, truncate_dim=options.get("dimensions"), precision=options.get("precision"))
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    if found.dtype == np.float32:
        assert_near(found, wanted)
    refused = asked(app, "POST", path, {"input": []}, headers=accept)
    assert refused.json()["error"]["code"] == "empty_input"


def test_what_ollamas_clients_ask_besides(app: Any, reference: Encoder) -> None:
    shown = asked(app, "POST", "/api/show", {"model": "tiny"}).json()
    assert shown["capabilities"] == ["embedding"]
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.embedding_length"] == reference.dimension
    assert shown["model_info"][f"{family}.context_length"] == reference.max_seq_length
    assert shown == asked(app, "POST", "/api/show", {"name": "tiny:latest"}).json()
    (running,) = asked(app, "GET", "/api/ps").json()["models"]
    assert (running["name"], running["size_vram"]) == ("tiny:latest", 0)
    assert asked(app, "GET", "/openai/v1/models").json() == asked(app, "GET", "/v1/models").json()
