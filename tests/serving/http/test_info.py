"""What /info says: the options that are in force, and nothing that is made up."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.agreeing import change_bundle
from support.asgi import asked
from whiten_serving import AsyncEncoder
from whiten_serving.batching.bounds import Bounds
from whiten_serving.http.options import HttpOptions

BODIES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "/v1/embeddings": ("input", lambda answer: answer["data"][0]["embedding"]),
    "/embed": ("inputs", lambda answer: answer[0]),
    "/api/embed": ("input", lambda answer: answer["embeddings"][0]),
    "/api/embeddings": ("prompt", lambda answer: answer["embedding"]),
}


def info(app: Any) -> Any:
    answer = asked(app, "GET", "/info")
    assert answer.status == 200
    return answer.json()


def assert_told(app: Any) -> None:
    """Check that each route's vectors have the norm that /info says they have."""
    told = info(app)["whiten"]["normalize"]
    assert told.keys() == BODIES.keys()
    for path, (field, vector) in BODIES.items():
        answer = asked(app, "POST", path, {field: "A first sentence."})
        assert answer.status == 200
        norm = np.linalg.norm(vector(answer.json()))
        assert (abs(norm - 1) < 1e-4) == told[path], (path, norm)


@pytest.mark.parametrize("normalize", [None, True, False])
def test_normalize_is_that_of_the_vectors(app_with: Any, normalize: bool | None) -> None:
    assert_told(app_with(normalize=normalize))


def test_normalize_of_a_bundle_that_divides_by_the_norm(golden: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    bundle = shutil.copytree(golden / "bundle-v1", tmp_path / "bundle")
    change_bundle(bundle, normalize=True)
    served = AsyncEncoder(bundle)
    for normalize in (None, True, False):
        assert_told(served.asgi_app(normalize=normalize))
    asyncio.run(served.close())
    served.batcher.encoder.close()


def test_all_options_are_told_but_no_key(app_with: Any, tmp_path: Path) -> None:
    app = app_with(api_keys=("a-secret",), max_texts=7, timeout=3.5, cors_origins=("https://a.example",))
    answer = asked(app, "GET", "/info", headers={"x-api-key": "a-secret"})
    assert b"a-secret" not in answer.body
    options = answer.json()["whiten"]["options"]
    assert list(options) == [one.name for one in fields(HttpOptions)]
    assert (options["api_keys"], options["max_texts"], options["timeout"]) == (True, 7, 3.5)
    assert options["cors_origins"] == ["https://a.example"]
    assert options["max_body"] == HttpOptions().max_body


def test_requests_at_once_are_bounded_by_connections_or_by_the_queue(app: Any, served: AsyncEncoder) -> None:
    bounds: Bounds = served.batcher.lanes.bounds
    assert info(app)["max_concurrent_requests"] == bounds.queue_tokens
    app.state.connections = 50
    assert info(app)["max_concurrent_requests"] == 50
