"""The vectors of every route are those of the encoder, whatever a request and the operator say."""

from typing import Any

import numpy as np
import pytest

from support.asgi import asked
from support.vectors import assert_near
from whiten import Encoder

TEXTS = ["A first sentence.", "", "Ein zweiter Satz über Käse 🧀", "word " * 300]
RAW: dict[str, Any] = {}
UNIT = {"normalize_embeddings": True}

CASES: list[tuple[dict[str, Any], str, dict[str, Any], dict[str, Any]]] = [
    # options of the application, path, body, options of Encoder.encode
    ({}, "/v1/embeddings", {"input": TEXTS}, RAW),
    ({}, "/v1/embeddings", {"input": TEXTS[0]}, RAW),
    ({}, "/v1/embeddings", {"input": TEXTS, "dimensions": 5}, {"truncate_dim": 5}),
    ({}, "/v1/embeddings", {"input": TEXTS, "normalize": True}, UNIT),
    ({}, "/v1/embeddings", {"input": TEXTS[:3], "truncate": "START"}, RAW),
    ({"normalize": True}, "/v1/embeddings", {"input": TEXTS}, UNIT),
    ({"normalize": True}, "/v1/embeddings", {"input": TEXTS, "normalize": False}, RAW),
    ({"on_long": "error"}, "/v1/embeddings", {"input": TEXTS, "truncate": "END"}, RAW),
    ({}, "/embeddings", {"input": TEXTS, "model": "whatever"}, RAW),
    ({}, "/openai/deployments/any/embeddings", {"input": TEXTS}, RAW),
    ({}, "/embed", {"inputs": TEXTS}, UNIT),
    ({}, "/", {"inputs": TEXTS}, UNIT),
    ({}, "/invocations", {"inputs": TEXTS}, UNIT),
    ({}, "/models/tiny", {"inputs": TEXTS}, UNIT),
    ({}, "/models/tiny/", {"inputs": TEXTS}, UNIT),
    ({}, "/models/tiny/embed", {"inputs": TEXTS}, UNIT),
    ({}, "/embed", {"inputs": TEXTS[0]}, UNIT),
    ({}, "/embed", {"inputs": TEXTS, "normalize": False, "truncate": True}, RAW),
    ({}, "/embed", {"inputs": TEXTS, "parameters": {"normalize": False}}, RAW),
    ({}, "/embed", {"inputs": TEXTS, "dimensions": 7}, {"truncate_dim": 7, **UNIT}),
    ({}, "/embed", {"inputs": TEXTS[:3], "truncation_direction": "Left", "options": {"wait_for_model": True}}, UNIT),
    ({"normalize": False}, "/embed", {"inputs": TEXTS}, RAW),
    ({}, "/api/embed", {"input": TEXTS, "model": "tiny:latest", "keep_alive": "5m"}, UNIT),
    ({}, "/api/embed", {"input": TEXTS[0]}, UNIT),
    ({}, "/api/embed", {"input": TEXTS, "dimensions": 4}, {"truncate_dim": 4, **UNIT}),
    ({}, "/api/embed", {"input": TEXTS, "dimensions": 0}, UNIT),
    ({}, "/api/embed", {"input": TEXTS, "options": {"temperature": 0.1, "num_ctx": 4096, "unheard_of": None}}, UNIT),
    ({}, "/api/embeddings", {"prompt": TEXTS[0], "model": "tiny"}, RAW),
]


@pytest.mark.parametrize(("options", "path", "body", "wanted"), CASES)
def test_vectors(
    app_with: Any, reference: Encoder, options: Any, path: str, body: dict[str, Any], wanted: dict[str, Any]
) -> None:
    answer = asked(app_with(**options), "POST", path, body)
    assert answer.status == 200, answer.body
    given = next(body[field] for field in ("input", "inputs", "prompt") if field in body)
    texts = [given] if isinstance(given, str) else given
    assert_near(vectors_of(answer.json()), reference.encode(texts, **wanted))


def vectors_of(body: Any) -> Any:
    """Return the vectors of an answer of any dialect."""
    if isinstance(body, list):
        return body
    if "data" in body:
        return [one["embedding"] for one in body["data"]]
    return body["embeddings"] if "embeddings" in body else [body["embedding"]]


ROUTES = {"/v1/embeddings": "input", "/embed": "inputs", "/api/embed": "input", "/api/embeddings": "prompt"}


@pytest.mark.parametrize("normalize", [None, True, False])
def test_each_route_gives_the_norms_that_info_tells(app_with: Any, normalize: bool | None) -> None:
    app = app_with(normalize=normalize)
    told = asked(app, "GET", "/info").json()["whiten"]["normalize"]
    assert told.keys() == ROUTES.keys()
    for path, field in ROUTES.items():
        (vector,) = vectors_of(asked(app, "POST", path, {field: "A first sentence."}).json())
        assert (abs(np.linalg.norm(vector) - 1) < 1e-4) == told[path], path
