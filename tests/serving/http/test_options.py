"""Options of the application."""

from typing import Any

import pytest

from whiten_runtime.errors import UsageError
from whiten_serving import AsyncEncoder
from whiten_serving.settings import AppSettings


@pytest.mark.parametrize(
    "bad",
    [
        {"max_texts": 0},
        {"max_body": "1"},
        {"max_text_chars": True},
        {"timeout": 0},
        {"timeout": float("inf")},
        {"timeout": float("nan")},
        {"token_ids": "p50k"},
        {"on_long": "cut"},
        {"empty": None},
        {"normalize": "yes"},
        {"access_log": True},
        {"api_keys": "key"},
        {"api_keys": ("",)},
        {"api_keys": {"": "name"}},
        {"max_requests": 0},
        {"max_in_flight": 1.5},
        {"cors_origins": ["*"]},
        {"max_queue": 3},
        {"root_path": "embeddings"},
        {"root_path": "/embeddings/"},
        {"root_path": "/a{b}"},
        {"root_path": None},
        {"root_path": "/api"},
        {"root_path": "/v1"},
        {"root_path": "/embeddings"},
        {"root_path": "/models"},
    ],
)
def test_options_that_cannot_be_used(served: AsyncEncoder, bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(bad))):
        served.asgi_app(**bad)


def test_the_name_is_the_bundles_unless_another_is_given(served: AsyncEncoder) -> None:
    assert served.asgi_app().state.service.models.names == (served._queue.encoder.manifest.name,)
    assert served.asgi_app("other").state.service.models.names == ("other",)
    assert AppSettings.of({}) == AppSettings()
