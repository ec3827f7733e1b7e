"""What /info says of norms is true of each route."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.asgi import asked

ROUTES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "/v1/embeddings": ("input", lambda answer: answer["data"][0]["embedding"]),
    "/embed": ("inputs", lambda answer: answer[0]),
    "/api/embed": ("input", lambda answer: answer["embeddings"][0]),
    "/api/embeddings": ("prompt", lambda answer: answer["embedding"]),
}


@pytest.mark.parametrize("normalize", [None, True, False])
def test_each_route_gives_the_norms_that_it_tells(app_with: Any, normalize: bool | None) -> None:
    app = app_with(normalize=normalize)
    told = asked(app, "GET", "/info").json()["whiten"]["normalize"]
    assert told.keys() == ROUTES.keys()
    for path, (field, vector) in ROUTES.items():
        answer = asked(app, "POST", path, {field: "A first sentence."})
        assert (abs(np.linalg.norm(vector(answer.json())) - 1) < 1e-4) == told[path], path
