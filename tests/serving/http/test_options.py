"""Options of the application."""

from typing import Any

import pytest

from whiten_runtime.errors import UsageError
from whiten_serving import AsyncEncoder
from whiten_serving.settings import AppSettings

BAD: dict[str, list[Any]] = {
    **{"max_texts": [0], "max_body": ["1"], "max_text_chars": [True], "timeout": [0, float("inf"), float("nan")]},
    **{"token_ids": ["p50k"], "on_long": ["cut"], "empty": [None], "normalize": ["yes"], "access_log": [True]},
    **{"api_keys": ["key", ("",), {"": "name"}], "max_requests": [0], "max_in_flight": [1.5], "max_queue": [3]},
    "cors_origins": [["*"]],
    "root_path": ["embeddings", "/embeddings/", "/a{b}", None, "/api", "/v1", "/embeddings", "/models"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_options_that_cannot_be_used(served: AsyncEncoder, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        served.asgi_app(**{name: value})


def test_the_name_is_the_bundles_unless_another_is_given(served: AsyncEncoder) -> None:
    assert served.asgi_app().state.service.models.names == (served._queue.encoder.manifest.name,)
    assert served.asgi_app("other").state.service.models.names == ("other",)
    assert AppSettings.of({}) == AppSettings()
