"""Ask an ASGI application in this process, with httpx."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

ROUTES = {
    "/v1/embeddings": {"input": "a"},
    "/embed": {"inputs": "a"},
    "/": {"inputs": "a"},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "/tokenize": {"inputs": "a"},
    "/api/embed": {"input": "a"},
    "/api/embeddings": {"prompt": "a"},
}
"""A body for each route that takes one, without a model; routes that lead to the same handler are named once."""

FIELDS = {"/v1/embeddings": "input", "/embed": "inputs", "/api/embed": "input"}
"""The field of the texts, for each route that takes several."""


@dataclass
class Answer:
    """An answer of the application."""

    status: int
    headers: httpx.Headers
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    app: Callable[..., Any],
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Return the answer to a request. A body that is not bytes, or an iterator of its parts, is sent as JSON."""
    content: Any = body if isinstance(body, bytes) or hasattr(body, "__aiter__") else json.dumps(body).encode()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        encoded = {name: value.encode("latin-1") for name, value in (headers or {}).items()}
        answer = await client.request(
            method, "http://test" + path, content=None if body is None else content, headers=encoded
        )
    return Answer(answer.status_code, answer.headers, answer.content)


def asked(app: Callable[..., Any], method: str, path: str, body: object = None, **named: Any) -> Answer:
    """Return the answer to one request, in an event loop of its own."""
    return asyncio.run(asyncio.wait_for(ask(app, method, path, body, **named), 120))


def metric(app: Any, name: str) -> float:
    """Return the number of a metric without labels."""
    (line,) = [line for line in app.state.service.metrics.page().decode().splitlines() if line.startswith(f"{name} ")]
    return float(line.rpartition(" ")[2])


async def until(true: Callable[[], bool]) -> None:
    """Wait in the event loop until something is true; fail after a minute."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
