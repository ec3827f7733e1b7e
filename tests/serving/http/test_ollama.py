"""Ollama's routes."""

from typing import Any

from support.asgi import asked


def test_what_an_answer_has_besides_vectors(app: Any) -> None:
    found = asked(app, "POST", "/api/embed", {"input": "a"}).json()
    assert found["model"] == "tiny"
    assert found["prompt_eval_count"] > 0
    assert found["total_duration"] > 0


def test_no_text_has_no_vector(app: Any) -> None:
    assert asked(app, "POST", "/api/embed", {"input": []}).json()["embeddings"] == []


def test_models_are_listed(app: Any) -> None:
    (one,) = asked(app, "GET", "/api/tags").json()["models"]
    assert one["name"] == one["model"] == "tiny:latest"
    assert one["size"] > 0
    assert len(one["digest"]) == 64
    assert one["details"]["format"] == "onnx"


def test_version(app: Any) -> None:
    assert asked(app, "GET", "/api/version").json()["version"]
