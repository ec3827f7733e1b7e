"""Ask an ASGI application in this process, with httpx, or as a client that goes before its answer."""

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from numpy.typing import ArrayLike


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
    query: str = "",
) -> Answer:
    """Return the answer to a request. A body that is not bytes, or an iterator of its parts, is sent as JSON."""
    content: Any = body if isinstance(body, bytes) or hasattr(body, "__aiter__") else json.dumps(body).encode()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        url = httpx.URL("http://test" + path, query=query.encode()) if query else "http://test" + path
        encoded = {name: value.encode("latin-1") for name, value in (headers or {}).items()}
        answer = await client.request(method, url, content=None if body is None else content, headers=encoded)
    return Answer(answer.status_code, answer.headers, answer.content)


def asked(app: Callable[..., Any], method: str, path: str, body: object = None, **named: Any) -> Answer:
    """Return the answer to one request, in an event loop of its own."""
    return asyncio.run(asyncio.wait_for(ask(app, method, path, body, **named), 30))


async def leave(app: Callable[..., Any], path: str, parts: Iterable[bytes], after: float) -> list[Any]:
    """Send a request, and go some seconds after its body; return what the application sent all the same."""
    left, sent = list(parts), []

    async def receive() -> dict[str, Any]:
        if left:
            body = left.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(left)}
        await asyncio.sleep(after)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "query_string": b"", "headers": []}
    await app(scope, receive, send)
    return sent


def assert_near(found: ArrayLike, wanted: ArrayLike, bound: float = 1e-6) -> None:
    """Check that vectors differ by no more than a share of their norm."""
    one, other = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert one.shape == other.shape
    norms = np.linalg.norm(other, axis=-1, keepdims=True)
    worst = float((np.abs(one - other) / norms).max(initial=0))
    assert math.isfinite(worst)
    assert worst <= bound, worst
