"""Options of the application, and requests from pages of other origins."""

from typing import Any

import pytest

from support.asgi import asked
from whiten_runtime.errors import UsageError
from whiten_serving import AsyncEncoder
from whiten_serving.settings import AppSettings

BAD: dict[str, list[Any]] = {
    **{"max_texts": [0], "max_body": ["1 apple", "-1", 1.5, True], "timeout": [0, float("inf"), float("nan")]},
    **{"token_ids": ["p50k"], "on_long": ["cut"], "empty": [None], "normalize": ["yes"], "log": [True]},
    **{"api_keys": ["key", ("",), {"": "name"}], "max_in_flight": [1.5], "max_queue": [3]},
    "cors_origins": [["*"]],
    "root_path": ["embeddings", "/embeddings/", "/a{b}", None, "/api", "/v1", "/embeddings", "/models"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_options_that_cannot_be_used(served: AsyncEncoder, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        served.asgi_app(**{name: value})


def test_numbers_may_have_units() -> None:
    settings = AppSettings.of({"max_body": "16MiB", "timeout": "500ms", "max_texts": " 7 "})
    assert settings == AppSettings(max_body=2**24, timeout=0.5, max_texts=7)
    assert [type(number) for number in (settings.max_body, AppSettings(timeout=30).timeout)] == [int, float]


def test_a_setting_that_is_not_known_has_a_hint() -> None:
    with pytest.raises(UsageError, match="'max_text'; did you mean max_texts"):
        AppSettings.of({"max_text": 3})


def test_the_name_is_the_bundles_unless_another_is_given(served: AsyncEncoder) -> None:
    assert served.asgi_app().state.service.models.names == (served._queue.encoder.manifest.name,)
    assert served.asgi_app("other").state.service.models.names == ("other",)
    assert AppSettings.of({}) == AppSettings()


PAGE = "https://page.example"
ASK = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}


@pytest.mark.parametrize(("origins", "allowed"), [((PAGE,), PAGE), (("*",), "*")])
def test_an_allowed_origin(app_with: Any, origins: tuple[str, ...], allowed: str) -> None:
    app = app_with(cors_origins=origins, api_keys=("key",))
    answer = asked(app, "OPTIONS", "/v1/embeddings", headers=ASK)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == allowed
    assert answer.headers["access-control-allow-headers"] == "authorization"
    assert "POST" in answer.headers["access-control-allow-methods"]
    refused = asked(app, "POST", "/v1/embeddings", {"input": "a"}, headers={"origin": PAGE})
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, allowed)
    headers = {"origin": PAGE, "api-key": "key"}
    answer = asked(app, "POST", "/v1/embeddings", {"input": "a"}, headers=headers)
    assert "x-request-id" in answer.headers["access-control-expose-headers"]


def test_another_origin(app_with: Any) -> None:
    answer = asked(
        app_with(cors_origins=(PAGE,)), "OPTIONS", "/embed", headers={**ASK, "origin": "https://other.example"}
    )
    assert "access-control-allow-origin" not in answer.headers
    assert "Origin" in answer.headers["vary"]


def test_no_origins(app: Any) -> None:
    answer = asked(app, "OPTIONS", "/embed", headers=ASK)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize("origins", [(PAGE,), ("*",)])
def test_a_page_may_call_a_private_network(app_with: Any, origins: tuple[str, ...]) -> None:
    headers = {**ASK, "access-control-request-private-network": "true"}
    answer = asked(app_with(cors_origins=origins), "OPTIONS", "/v1/embeddings", headers=headers)
    assert (answer.status, answer.headers["access-control-allow-private-network"]) == (200, "true")
    other = {**headers, "origin": "https://other.example"}
    if "*" not in origins:
        assert asked(app_with(cors_origins=origins), "OPTIONS", "/embed", headers=other).status == 400
