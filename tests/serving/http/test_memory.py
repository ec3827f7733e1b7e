"""Bodies, texts and answers take so much memory at once, and requests beyond it are refused."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from support.asgi import FIELDS, ask, metric, until


@pytest.mark.parametrize("path", FIELDS)
def test_bodies_take_so_much_memory_at_once(app_with: Any, path: str) -> None:
    """What has arrived of a body counts, and not what its head says."""
    app = app_with(max_in_flight=1_000_000)
    content = b'{"%b": "%b"}' % (FIELDS[path].encode(), b"word " * 40_000)

    async def run() -> None:
        rest = asyncio.Event()

        async def halting() -> AsyncIterator[bytes]:
            yield content[:100_000]
            yield content[100_000:-100]
            await rest.wait()
            yield content[-100:]

        headers = {"content-length": str(len(content))}
        running = asyncio.create_task(ask(app, "POST", path, halting(), headers))
        await until(lambda: metric(app, "whiten_in_flight_bytes") == 3 * (len(content) - 100))
        refused = await ask(app, "POST", path, halting(), headers)
        assert refused.status == 429
        assert (refused.headers["retry-after"], refused.headers["retry-after-ms"]) == ("1", "1000")
        assert path != "/v1/embeddings" or refused.json()["error"]["code"] == "queue_full"
        assert path != "/embed" or refused.json()["error_type"] == "Overloaded"
        assert (await ask(app, "POST", path, {FIELDS[path]: "a"})).status == 200
        rest.set()
        assert (await running).status == 200
        again = await ask(app, "POST", path, content, headers)
        assert again.status == 200, "what was reserved was not given back"

    asyncio.run(run())
    assert metric(app, "whiten_in_flight_bytes") == metric(app, "whiten_in_flight_requests") == 0
    assert 'whiten_rejected_total{reason="bytes"} 1.0' in app.state.service.metrics.page().decode()


def test_a_body_that_is_alone_is_taken_and_what_it_decodes_to_counts(app_with: Any) -> None:
    app = app_with(max_in_flight=1_000_000, max_texts=100_000)
    plain, wide = "word " * 100_000, "wörd 😀" * 60_000
    many = ["ab"] * 20_000

    async def run() -> None:
        assert (await ask(app, "POST", "/embed", {"inputs": [plain] * 10})).status == 200
        for body, bytes_ in (({"inputs": wide}, 1_500_000), ({"inputs": many}, 1_600_000)):
            seen = []
            budget = app.state.service.budget
            reserve = budget.reserve
            budget.reserve = lambda call, total, seen=seen, reserve=reserve: (reserve(call, total), seen.append(total))
            assert (await ask(app, "POST", "/embed", body)).status == 200
            budget.reserve = reserve
            assert max(seen) >= bytes_

    asyncio.run(run())
    assert app.state.service.budget.bytes.total == 0


async def untaken(app: Any, body: bytes, taken: asyncio.Event) -> int:
    """Ask for an answer, and take no byte of it before an event; return its length as its header says."""
    length = 0

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        nonlocal length
        length = int(dict(message.get("headers", ())).get(b"content-length", length))
        if message["type"] == "http.response.body":
            await taken.wait()

    headers = [(b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": "POST", "path": "/v1/embeddings", "root_path": "", "query_string": b""}
    await app({**scope, "headers": headers}, receive, send)
    return length


def test_answers_count_until_they_are_taken(app_with: Any) -> None:
    """A small body may have a large answer."""
    app = app_with(max_in_flight=2_000_000)
    budget, body = app.state.service.budget, orjson.dumps({"input": ["a"] * 2048})

    async def run() -> None:
        taken = asyncio.Event()
        slow = [asyncio.create_task(untaken(app, body, taken)) for _ in range(5)]
        await until(lambda: budget.bytes.total > 10**6)
        refused = await ask(app, "POST", "/v1/embeddings", body)
        assert (refused.status, refused.json()["error"]["code"]) == (429, "queue_full")
        assert (await ask(app, "POST", "/v1/embeddings", {"input": "a"})).status == 200
        taken.set()
        lengths = await asyncio.gather(*slow)
        assert max(lengths) > 300_000
        assert budget.bytes.total == budget.requests.total == 0
        assert (await ask(app, "POST", "/v1/embeddings", body)).status == 200

    asyncio.run(run())
