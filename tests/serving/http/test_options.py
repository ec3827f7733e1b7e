"""Options of the application: those that are refused, units, hints, and the model's name."""

from typing import Any

import pytest

from support.asgi import asked
from whiten import Encoder
from whiten_runtime.errors import UsageError
from whiten_serving import AsyncEncoder

BAD: dict[str, list[Any]] = {
    **{"max_texts": [0], "max_text": [3], "max_body": ["1 apple", "-1", 1.5, True], "timeout": [0, float("inf")]},
    **{"token_ids": ["p50k"], "on_long": ["cut"], "empty": [None], "normalize": ["yes"], "log": [True]},
    **{"api_keys": ["key", ("",), {"": "name"}], "max_in_flight": [1.5], "max_queue": [3]},
    "cors_origins": [["*"]],
    "root_path": [
        *("embeddings", "/embeddings/", "/a{b}", None, "/api", "/models/bundle-v1", "/v1/models/foo", "/embed"),
    ],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_options_that_cannot_be_used(served: AsyncEncoder, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        served.asgi_app(**{name: value})


def test_the_name_is_the_bundles_unless_another_is_given(served: AsyncEncoder, reference: Encoder) -> None:
    for name in (None, "other"):
        (model,) = asked(served.asgi_app(name), "GET", "/v1/models").json()["data"]
        assert model["id"] == (name or reference.manifest.name)
