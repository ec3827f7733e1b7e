"""Work that no queue bounds: /tokenize, /decode and token ids, by their threads, time and callers."""

import asyncio
import threading
import time
from typing import Any

import pytest

from support.asgi import Client, ask, asked
from whiten_serving.http.workers import Workers


def texts_of(app: Any, monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[str]:
    """Let each text take so long, and return the list of those that were worked on."""
    from whiten_serving.http.dialects import tei

    plain, seen = tei._tokens, []

    def slow(served: Any, text: str, special: bool) -> Any:
        seen.append(threading.current_thread().name)
        time.sleep(seconds)
        return plain(served, text, special)

    monkeypatch.setattr(tei, "_tokens", slow)
    return seen


@pytest.mark.parametrize("options", [{"timeout": 0.2}, {}])
def test_the_time_of_a_request_ends_its_work(app_with: Any, monkeypatch: Any, options: dict[str, Any]) -> None:
    app = app_with(**options)
    seen = texts_of(app, monkeypatch, 0.1)
    begun = time.monotonic()
    headers = {} if options else {"x-timeout-ms": "200"}
    answer = asked(app, "POST", "/tokenize", {"inputs": ["a"] * 100}, headers=headers)
    assert (answer.status, answer.json()["error_type"]) == (504, "Backend")
    assert time.monotonic() - begun < 5
    time.sleep(0.5)
    assert len(seen) < 10
    assert seen[0].startswith("whiten-tokens")


def test_work_for_callers_that_have_gone_ends(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = texts_of(app, monkeypatch, 0.1)
    body = b'{"inputs": [' + b'"a",' * 99 + b'"a"]}'
    client = Client([body], gone_after=0.1)
    assert asyncio.run(asyncio.wait_for(ask(app, "POST", "/tokenize", client=client), 10)) is None
    time.sleep(0.5)
    assert len(seen) < 10


def test_two_requests_run_and_few_wait(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts_of(app, monkeypatch, 0.05)

    async def run() -> list[Any]:
        busy = [ask(app, "POST", "/tokenize", {"inputs": "a"}) for _ in range(60)]
        embed = ask(app, "POST", "/v1/embeddings", {"input": "word " * 5000})
        return await asyncio.gather(*busy, embed)

    *answers, embedded = asyncio.run(run())
    statuses = [answer.status for answer in answers]
    assert (statuses.count(200), statuses.count(429)) == (32, 28)
    refused = next(answer for answer in answers if answer.status == 429)
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error_type"] == "Overloaded"
    assert embedded.status == 200
    assert asked(app, "POST", "/tokenize", {"inputs": "a"}).status == 200


def test_the_characters_of_a_request_are_bounded(app: Any) -> None:
    assert asked(app, "POST", "/tokenize", {"inputs": ["a" * 50_000] * 2}).status == 200
    answer = asked(app, "POST", "/tokenize", {"inputs": ["a" * 50_000] * 2 + ["a"]})
    assert answer.status == 413
    assert "100001 characters, and 100000 may" in answer.json()["error"]
    assert asked(app, "POST", "/decode", {"ids": [5] * 100_001}).status == 413


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"inputs": "a"}), ("/decode", {"ids": [5]})])
def test_they_wait_for_the_server_to_be_ready(app_with: Any, path: str, body: object) -> None:
    app = app_with()
    app.state.ready = False
    assert asked(app, "POST", path, body).status == 503


def test_the_error_of_an_item_is_that_of_the_request() -> None:
    async def run() -> None:
        from support.asgi import scope_of
        from whiten_serving.http.call import Call

        call = Call.of(scope_of("POST", "/", {}), Client([b""]).receive)
        call.set_deadline(10)
        workers = Workers("test")
        assert await workers.map(call, str, [1, 2]) == ["1", "2"]
        with pytest.raises(ZeroDivisionError):
            await workers.map(call, lambda item: 1 / item, [1, 0])
        assert await workers.map(call, str, []) == []

    asyncio.run(run())
