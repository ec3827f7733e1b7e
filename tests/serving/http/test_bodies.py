"""The bytes of all bodies together: bounded, counted back, and without effect on small requests."""

import asyncio
import json
from typing import Any

import pytest

from support.asgi import Client, ask, asked
from whiten_runtime.errors import UsageError
from whiten_serving.http.bodies import FREE

EMBEDDINGS = "/v1/embeddings"
BODY = json.dumps({"input": "a" * 40_000}).encode()


class Slow(Client):
    """Sends all of its body but the end, which it sends when it is told to."""

    def __init__(self, body: bytes) -> None:
        super().__init__([body[:-1], body[-1:]])
        self.go = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if self.received == 1:
            await self.go.wait()
        return await super().receive()


async def half_sent(app: Any, count: int, held: int) -> list[tuple[Slow, "asyncio.Task[Any]"]]:
    """Begin requests, and wait until so many bytes of them were read."""
    clients = [Slow(BODY) for _ in range(count)]
    tasks = [asyncio.create_task(ask(app, "POST", EMBEDDINGS, client=client)) for client in clients]
    async with asyncio.timeout(10):
        while app.state.bodies.bytes != held:
            await asyncio.sleep(0.001)
    return list(zip(clients, tasks, strict=True))


def test_bodies_that_are_read_are_bounded_together(app_with: Any) -> None:
    app = app_with(max_body=50_000, max_waiting_body=100_000)

    async def run() -> None:
        held = await half_sent(app, 2, 2 * (len(BODY) - 1))
        for headers in ({}, {"content-length": str(len(BODY))}):
            client = Client([BODY])
            refused = await ask(app, "POST", EMBEDDINGS, headers=headers, client=client)
            assert refused is not None
            assert (refused.status, refused.json()["error"]["code"]) == (429, "bodies_full")
            assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
            assert client.received == (0 if headers else 1)
        small = await ask(app, "POST", EMBEDDINGS, {"input": "a" * (FREE - 100)})
        assert small is not None
        assert small.status == 200
        for client, task in held:
            client.go.set()
            assert (await task).status == 200
        again = await ask(app, "POST", EMBEDDINGS, BODY)
        assert again is not None
        assert again.status == 200

    asyncio.run(run())
    assert (app.state.bodies.bytes, app.state.bodies.refused) == (0, 2)
    page = asked(app, "GET", "/metrics").body.decode()
    assert 'whiten_rejected_total{reason="bodies_full"} 2.0' in page
    assert "whiten_body_bytes 0.0" in page


def test_bodies_count_until_their_requests_are_answered(app_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_with(max_body=50_000, max_waiting_body=50_000)
    plain = type(app._service.inputs).texts
    begun = asyncio.Event()
    go = asyncio.Event()

    async def late(*given: Any) -> list[str]:
        begun.set()
        await go.wait()
        found: list[str] = await plain(*given)
        return found

    async def run() -> None:
        monkeypatch.setattr(type(app._service.inputs), "texts", late)
        first = asyncio.create_task(ask(app, "POST", EMBEDDINGS, BODY))
        await begun.wait()
        assert app.state.bodies.bytes == len(BODY)
        refused = await ask(app, "POST", EMBEDDINGS, BODY)
        assert refused is not None
        assert refused.status == 429
        go.set()
        answer = await first
        assert answer is not None
        assert answer.status == 200

    asyncio.run(run())
    assert app.state.bodies.bytes == 0


@pytest.mark.parametrize("body", [b"{", b'{"input":3}', b"x" * 60_000, BODY])
def test_nothing_is_counted_after_a_request_however_it_ends(app_with: Any, body: bytes) -> None:
    app = app_with(max_body=50_000, max_waiting_body=50_000, max_text_chars=10)
    assert asked(app, "POST", EMBEDDINGS, client=Client([body[:10], body[10:]])).status >= 400
    assert app.state.bodies.bytes == 0


def test_nothing_is_counted_of_callers_that_go(app: Any) -> None:
    class Going(Client):
        async def receive(self) -> dict[str, Any]:
            return await super().receive() if not self.received else {"type": "http.disconnect"}

    assert asyncio.run(ask(app, "POST", EMBEDDINGS, client=Going([b"x" * 1000, b"y"]))) is None
    assert app.state.bodies.bytes == 0


def test_the_bound_must_hold_one_body(app_with: Any) -> None:
    with pytest.raises(UsageError, match="max_waiting_body is 10, less than max_body"):
        app_with(max_waiting_body=10)
