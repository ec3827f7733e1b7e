"""What /info says: the options that are in force, and nothing that is made up."""

from collections.abc import Callable
from typing import Any

import numpy as np

from support.asgi import asked

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
