"""Keys, and what needs none."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.asgi import asked

KEYS = ("first-key", "zweiter-schlüssel")
OPEN = ("/live", "/ready", "/health", "/ping")


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


def test_the_name_of_a_key_is_logged_and_counted(app_with: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = app_with(api_keys={"k1": "alice", "k2": "bob", "k3": "bob", "k4": ""}, log="json")
    with caplog.at_level("INFO", "whiten.access"):
        for key in ("k1", "k2", "k3", "k4", "wrong"):
            asked(app, "POST", "/embed", {"inputs": "a"}, headers={"x-api-key": key})
        asked(app, "POST", "/embed", {"inputs": []}, headers={"authorization": "Bearer k1"})
        asked(app, "GET", "/ready", headers={"x-api-key": "k1"})
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "whiten.access"]
    assert [line.get("client") for line in lines] == ["alice", "bob", "bob", None, None, "alice", None]
    page = asked(app, "GET", "/metrics", headers={"x-api-key": "k4"}).body.decode()
    for client, status, count in (("alice", 200, 1), ("bob", 200, 2), ("", 200, 1), ("", 401, 1), ("alice", 400, 1)):
        labels = f'client="{client}",model="{"" if status > 200 else "tiny"}",route="/embed",status="{status}"'
        assert f"whiten_requests_total{{{labels}}} {count}.0" in page
    assert "k1" not in page


def test_keys_are_replaced(app_with: Any) -> None:
    app = app_with(api_keys=KEYS)
    app.state.service.take_keys({"new": "alice"})
    assert asked(app, "GET", "/info", headers={"x-api-key": "new"}).status == 200
    assert asked(app, "GET", "/info", headers={"x-api-key": KEYS[0]}).status == 401


def test_probes_need_no_key(app_with: Any) -> None:
    app = app_with(api_keys=KEYS)
    assert [asked(app, "GET", path).status for path in OPEN] == [200] * len(OPEN)
    assert [
        asked(app, "GET", path).status
        for path in ("/", "/info", "/v1/models", "/api/tags", "/metrics", "/openapi.json")
    ] == [401] * 6


def test_a_key_is_known_by_its_hash_alone(app_with: Any) -> None:
    """How long a comparison takes tells nothing of a key, and the process holds none."""
    app = app_with(api_keys=(*KEYS, "third"))
    assert not any(key in str(vars(app.state.service)["_keys"]) for key in (*KEYS, "third"))
    assert asked(app, "GET", "/info", headers={"x-api-key": "third"}).status == 200
    assert asked(app, "GET", "/info", headers={"x-api-key": "thirt"}).status == 401


def test_a_body_is_not_read_without_a_key(app_with: Any) -> None:
    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    assert asked(app_with(api_keys=KEYS), "POST", "/embed", never()).status == 401
