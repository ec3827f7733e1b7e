"""Keys: what is logged, counted and held of them."""

import json
from typing import Any

import pytest

from support.asgi import asked

KEYS = ("first-key", "zweiter-schlüssel")


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


def test_a_key_is_known_by_its_hash_alone(app_with: Any) -> None:
    """How long a comparison takes tells nothing of a key, and the process holds none."""
    assert not any(key in str(vars(app_with(api_keys=KEYS).state.service)["_keys"]) for key in KEYS)
