"""Keys, and what needs none."""

import asyncio
import hmac
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.asgi import asked

KEYS = ("first-key", "zweiter-schlüssel")
OPEN = ("/live", "/ready", "/health", "/ping", "/metrics")


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first-key"},
        {"authorization": "bearer  first-key"},
        {"x-api-key": "first-key"},
        {"api-key": "first-key"},
        {"authorization": "Bearer zweiter-schlüssel".encode().decode("latin-1")},
        {"authorization": "Basic abc", "x-api-key": "first-key"},
    ],
)
def test_keys_that_are_right(app_with: Any, headers: dict[str, str]) -> None:
    app = app_with(api_keys=KEYS)
    assert asked(app, "POST", "/v1/embeddings", {"input": "a"}, headers=headers).status == 200
    assert asked(app, "GET", "/info", headers=headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer "},
        {"authorization": "first-key"},
        {"authorization": "Basic first-key"},
        {"authorization": "Bearer first-ke"},
        {"authorization": "Bearer first-key2"},
        {"authorization": "Bearer wrong", "x-api-key": "first-key"},
        {"x-api-key": ""},
    ],
)
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed", "/api/embed"])
def test_keys_that_are_wrong(app_with: Any, headers: dict[str, str], path: str) -> None:
    answer = asked(app_with(api_keys=KEYS), "POST", path, {"input": "a"}, headers=headers)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "first" not in answer.body.decode()


def test_probes_and_metrics_need_no_key(app_with: Any) -> None:
    app = app_with(api_keys=KEYS)
    assert [asked(app, "GET", path).status for path in OPEN] == [200] * 5
    assert [asked(app, "GET", path).status for path in ("/", "/info", "/v1/models", "/api/tags")] == [401] * 4


def test_every_key_is_compared_in_constant_time(app_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_with(api_keys=(*KEYS, "third"))
    compared: list[int] = []
    compare = hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append(len(one) == len(other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    assert asked(app, "GET", "/info", headers={"x-api-key": "first-key"}).status == 200
    assert compared == [True] * 3


def test_a_body_is_not_read_without_a_key(app_with: Any) -> None:
    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    assert asked(app_with(api_keys=KEYS), "POST", "/embed", never()).status == 401
