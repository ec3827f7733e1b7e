"""What clients do to a server, in this process: they wait behind a slow text, stay, go, and send much."""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from support.asgi import Answer, ask, until
from support.timed import slow

CLIENTS = 41
"""Clients that have keys."""

NOISY = 4 * min(32, (os.cpu_count() or 1) + 4)
"""Requests of a noisy client: several for each thread that asyncio has by default."""

_RUNS = count()


@dataclass(eq=False)
class Post:
    """A request to /embed, and its answer."""

    texts: Sequence[str]
    client: int = 0  # number of its key
    tokens: int = 0
    answer: Answer | None = None


async def post(app: Callable[..., Any], request: Post, answered: list[Post]) -> None:
    """Send a request, and note it when it is answered."""
    headers = {"x-api-key": f"key-{request.client}"}
    request.answer = await ask(app, "POST", "/embed", {"inputs": list(request.texts)}, headers)
    answered.append(request)


def keys_of_clients() -> dict[str, str]:
    """Return keys and the names of their clients, which no earlier call has returned: what they did is forgotten."""
    run = next(_RUNS)
    return {f"key-{number}": f"client-{run}-{number}" for number in range(CLIENTS)}


async def answered_in_order(encoder: Any, requests: Sequence[Post]) -> list[Post]:
    """Post requests while the lanes are busy, and return them in the order in which they are answered.

    `encoder` is an AsyncEncoder of one lane and a timed bundle. Where its lane is free again before all requests wait,
    they are posted once more behind a longer text.
    """
    for size in (724, 1024, 1448):
        if (answered := await _answered_behind(slow(size), encoder, requests)) is not None:
            return answered
    raise AssertionError("the machine is too busy: requests do not come to wait")


async def _answered_behind(text: str, encoder: Any, requests: Sequence[Post]) -> list[Post] | None:
    """Return requests in the order of their answers; None if not all of them have waited for a slow text."""
    app = encoder.asgi_app("timed", api_keys=keys_of_clients(), timeout=36_000.0, max_in_flight=2**40, log="off")
    answered: list[Post] = []
    gates = [asyncio.create_task(post(app, Post([text], CLIENTS - 1), [])) for _ in range(2)]  # one may run here
    await until(lambda: encoder.stats().lanes_busy == 1 or all(gate.done() for gate in gates))
    tasks = [asyncio.create_task(post(app, request, answered)) for request in requests]
    await until(lambda: encoder.stats().queue_requests >= len(tasks) or any(gate.done() for gate in gates))
    ended = any(gate.done() for gate in gates)
    await asyncio.gather(*gates, *tasks)
    return None if ended else answered


async def cancel(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks, and wait for their ends."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


async def with_others_staying(app: Any, others: list[tuple[int, bytes]], request: Post) -> Answer | None:
    """Return the answer to a request while a client holds connections open.

    Each of these has sent a head with a length, and some bytes of its body, and sends nothing more.
    """
    sent = 0

    async def body(content: bytes) -> AsyncIterator[bytes]:
        nonlocal sent
        yield content
        sent += 1
        await asyncio.Event().wait()

    tasks = []
    for declared, content in others:
        headers = {"x-api-key": "key-0", "content-length": str(declared)}
        tasks.append(asyncio.create_task(ask(app, "POST", "/embed", body(content), headers)))
    await until(lambda: sent + sum(task.done() for task in tasks) >= len(tasks))
    await post(app, request, [])
    await cancel(*(task for task in tasks if not task.done()))
    return request.answer


async def leave(app: Any, body: object, gone: asyncio.Event) -> None:
    """Send a request, and close the connection when an event is set."""
    content = json.dumps(body).encode()
    messages = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receive() -> Any:
        if (message := next(messages, None)) is not None:
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        await asyncio.sleep(0)

    headers = [(b"host", b"test"), (b"content-length", str(len(content)).encode())]
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/embed", "raw_path": b"/embed"}
    await app(scope | {"query_string": b"", "headers": headers, "scheme": "http", "root_path": ""}, receive, send)


def text_of_long_words(number: int) -> str:
    """Return a text of 4,200 letters, which takes long to tokenise: no part of its words is a word."""
    letters = random.Random(number).choices("jkqvwxz", k=4158)
    return " ".join("".join(letters[start : start + 99]) for start in range(0, len(letters), 99))


async def answered_before(app: Any, other: Coroutine[Any, Any, Answer]) -> int:
    """Return how many requests of a noisy client, all posted before another request, are answered before it.

    Nothing of them takes as long as tokenising their texts, of which the bundle reads the beginning only.
    """
    noise = [Post([text_of_long_words(2 * number + place) for place in range(2)]) for number in range(NOISY)]
    answered: list[Post] = []
    tasks = [asyncio.create_task(post(app, request, answered)) for request in noise]
    for _ in range(50):  # turns of the event loop, in which the others come as far as they can
        await asyncio.sleep(0)
    answer = await asyncio.create_task(other)
    count = sum(request.answer is not None and request.answer.status == 200 for request in answered)
    await cancel(*tasks)
    assert answer.status == 200, answer.body
    return count
