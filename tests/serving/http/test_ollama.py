"""Ollama's routes."""

from typing import Any

import pytest

from support.asgi import asked
from support.vectors import assert_near
from whiten import Encoder

TEXTS = ["A first sentence.", "", "Ein zweiter Satz über Käse 🧀", "word " * 300]


def test_embed_gives_normalised_vectors(app: Any, reference: Encoder) -> None:
    found = asked(app, "POST", "/api/embed", {"model": "tiny:latest", "input": TEXTS, "keep_alive": "5m"}).json()
    assert_near(found["embeddings"], reference.encode(TEXTS, normalize_embeddings=True))
    assert found["model"] == "tiny"
    assert found["prompt_eval_count"] > 0
    assert found["total_duration"] > 0


def test_embed_takes_one_string_and_no_text(app: Any, reference: Encoder) -> None:
    found = asked(app, "POST", "/api/embed", {"input": "a"}).json()["embeddings"]
    assert_near(found, reference.encode(["a"], normalize_embeddings=True))
    assert asked(app, "POST", "/api/embed", {"input": []}).json()["embeddings"] == []


def test_the_older_route_gives_the_bundles_vector(app: Any, reference: Encoder) -> None:
    found = asked(app, "POST", "/api/embeddings", {"model": "tiny", "prompt": TEXTS[0]}).json()
    assert list(found) == ["embedding"]
    assert_near(found["embedding"], reference.encode(TEXTS[0]))


def test_dimensions(app: Any, reference: Encoder) -> None:
    found = asked(app, "POST", "/api/embed", {"input": TEXTS, "dimensions": 4}).json()["embeddings"]
    assert_near(found, reference.encode(TEXTS, truncate_dim=4, normalize_embeddings=True))
    whole = asked(app, "POST", "/api/embed", {"input": TEXTS, "dimensions": 0}).json()["embeddings"]
    assert len(whole[0]) == reference.dimension


def test_options_that_change_no_vector_are_taken(app: Any) -> None:
    options = {"temperature": 0.1, "num_ctx": 4096, "num_thread": 2, "stop": None, "unheard_of": None}
    assert asked(app, "POST", "/api/embed", {"input": TEXTS, "options": options}).status == 200


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"input": "a", "options": {"pooling": "cls"}}, "pooling"),
        ({"input": "a b c d e f g", "options": {"num_ctx": 2}}, "num_ctx"),
        ({"input": "a", "options": {"num_ctx": "2"}}, "num_ctx"),
        ({"input": TEXTS[3], "truncate": False}, "tokens"),
        ({"input": [1, 2]}, "token ids"),
        ({"input": "a", "format": "json"}, "format"),
        ({}, "input"),
        ([], "object"),
    ],
)
def test_what_is_refused(app: Any, body: object, word: str) -> None:
    answer = asked(app, "POST", "/api/embed", body)
    assert answer.status == 400
    assert list(answer.json()) == ["error"]
    assert word in answer.json()["error"]


def test_models_are_listed(app: Any) -> None:
    (one,) = asked(app, "GET", "/api/tags").json()["models"]
    assert one["name"] == one["model"] == "tiny:latest"
    assert one["size"] > 0
    assert len(one["digest"]) == 64
    assert one["details"]["format"] == "onnx"


def test_version(app: Any) -> None:
    assert asked(app, "GET", "/api/version").json()["version"]


def test_errors_of_unknown_paths_are_ollamas(app: Any) -> None:
    answer = asked(app, "POST", "/api/generate", {"model": "tiny"})
    assert answer.status == 404
    assert list(answer.json()) == ["error"]
