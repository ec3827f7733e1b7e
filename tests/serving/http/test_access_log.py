"""The line of each request: what it has, and what it never has."""

import json
from typing import Any

import pytest

from support.asgi import asked

SECRET = "a secret sentence that nobody may log"
FIELDS = [
    *("time", "id", "method", "route", "model", "status", "texts", "tokens", "truncated"),
    *("queue_ms", "run_ms", "total_ms"),
]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "whiten.access"]


def test_json(app_with: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = app_with(access_log="json")
    with caplog.at_level("INFO", "whiten.access"):
        asked(app, "POST", "/v1/embeddings", {"input": [SECRET, "b"]}, headers={"x-request-id": "abc"})
        asked(app, "POST", "/embed", {"inputs": []})
    first, second = map(json.loads, lines(caplog))
    assert list(first) == FIELDS
    assert (first["id"], first["route"], first["model"], first["status"]) == ("abc", "/v1/embeddings", "tiny", 200)
    assert (first["texts"], first["method"]) == (2, "POST")
    assert first["tokens"] > 2
    assert first["total_ms"] >= first["run_ms"] > 0
    assert list(second) == [*FIELDS, "error"]
    assert (second["status"], second["error"]) == (400, "empty_input")


def test_text(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "whiten.access"):
        asked(app, "POST", "/embed", {"inputs": SECRET}, headers={"x-request-id": "abc"})
    (line,) = lines(caplog)
    assert " 200 POST /embed id=abc model=tiny texts=1 tokens=" in line


def test_off_and_levels(app_with: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "whiten.access"):
        asked(app_with(access_log="off"), "GET", "/live")
    asked(app_with(), "GET", "/live")
    assert lines(caplog) == []


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_text_is_ever_logged(
    app_with: Any, form: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_with(access_log=form, api_keys=(SECRET[:8],))
    headers = {"x-api-key": SECRET[:8]}
    with caplog.at_level("DEBUG"):
        for body in (
            {"input": SECRET},
            {"input": [SECRET], "model": SECRET},
            {"input": SECRET, SECRET: 1},
            {"input": SECRET, "encoding_format": SECRET},
            {"input": SECRET, "prompt_name": SECRET},
            SECRET.encode(),
        ):
            asked(app, "POST", "/v1/embeddings", body, headers=headers)
        asked(app, "GET", f"/{SECRET}", headers=headers)
        asked(app, SECRET.upper(), "/live", headers=headers)
        monkeypatch.setattr(type(app.state.service.models), "get", lambda *_: 1 / 0)
        assert asked(app, "POST", "/v1/embeddings", {"input": SECRET}, headers=headers).status == 500
    assert len(lines(caplog)) == 9
    assert not any("secret" in str(record).lower() for record in caplog.records if record.name.startswith("whiten"))


def test_one_line_a_request_whatever_it_holds(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "whiten.access"):
        asked(app, "GET", "/live%0aforged", headers={"x-request-id": "a b"})
        asked(app, "POST", "/embed", {"inputs": "a\nb"})
    assert all("\n" not in line and "\r" not in line for line in lines(caplog))
    assert not any("forged" in line for line in lines(caplog))
