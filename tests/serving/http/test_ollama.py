"""Ollama's routes."""

from typing import Any

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


def test_models_are_listed(app: Any) -> None:
    (one,) = asked(app, "GET", "/api/tags").json()["models"]
    assert one["name"] == one["model"] == "tiny:latest"
    assert one["size"] > 0
    assert len(one["digest"]) == 64
    assert one["details"]["format"] == "onnx"


def test_version(app: Any) -> None:
    assert asked(app, "GET", "/api/version").json()["version"]
