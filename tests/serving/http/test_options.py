"""Options of the application: those that are refused, units, hints, and the model's name."""

from typing import Any

import pytest

from whiten_runtime.errors import UsageError
from whiten_serving import AsyncEncoder
from whiten_serving.settings import Settings

BAD: dict[str, list[Any]] = {
    **{"max_texts": [0], "max_body": ["1 apple", "-1", 1.5, True], "timeout": [0, float("inf"), float("nan")]},
    **{"token_ids": ["p50k"], "on_long": ["cut"], "empty": [None], "normalize": ["yes"], "log": [True]},
    **{"api_keys": ["key", ("",), {"": "name"}], "max_in_flight": [1.5], "max_queue": [3]},
    "cors_origins": [["*"]],
    "root_path": [
        *("embeddings", "/embeddings/", "/a{b}", None, "/api", "/v1", "/embeddings", "/models"),
        *("/models/bundle-v1", "/v1/models/foo", "/openai/deployments/x", "/embed"),
    ],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_options_that_cannot_be_used(served: AsyncEncoder, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        served.asgi_app(**{name: value})


def test_numbers_may_have_units() -> None:
    settings = Settings.of({"max_body": "16MiB", "timeout": "500ms", "max_texts": " 7 "})
    assert settings == Settings(max_body=2**24, timeout=0.5, max_texts=7)
    assert [type(number) for number in (settings.max_body, Settings(timeout=30).timeout)] == [int, float]


def test_a_setting_that_is_not_known_has_a_hint() -> None:
    with pytest.raises(UsageError, match="'max_text'; did you mean max_texts"):
        Settings.of({"max_text": 3})


def test_the_name_is_the_bundles_unless_another_is_given(served: AsyncEncoder) -> None:
    assert served.asgi_app().state.service.models.names == (served._queue.encoder.manifest.name,)
    assert served.asgi_app("other").state.service.models.names == ("other",)
    assert Settings.of({}) == Settings()
