"""Ask an ASGI application in this process: requests as a server gives them, answers as it gets them."""

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


@dataclass
class Answer:
    """An answer, and whether the application wanted the connection closed."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """The other end of one connection: what it sends, and when it goes."""

    def __init__(self, parts: Iterable[bytes], pause: float = 0.0, gone_after: float | None = None) -> None:
        self._parts = list(parts) or [b""]
        self._pause = pause
        self._gone_after = gone_after
        self.received = 0
        self.watched = False

    async def receive(self) -> dict[str, Any]:
        if self.received < len(self._parts):
            if self._pause:
                await asyncio.sleep(self._pause)
            self.received += 1
            body = self._parts[self.received - 1]
            return {"type": "http.request", "body": body, "more_body": self.received < len(self._parts)}
        self.watched = True
        if self._gone_after is None:
            await asyncio.Event().wait()
        await asyncio.sleep(self._gone_after or 0.0)
        return {"type": "http.disconnect"}


def scope_of(method: str, path: str, headers: Mapping[str, str], root: str = "", query: str = "") -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": root + path,
        "raw_path": (root + path).encode(),
        "query_string": query.encode(),
        "root_path": root,
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8080),
    }


async def ask(
    app: Callable[..., Any],
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    *,
    client: Client | None = None,
    root: str = "",
    query: str = "",
) -> Answer | None:
    """Return the answer to a request; None if the application gave none. A body that is not bytes is sent as JSON."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    given = dict(headers or {})
    if client is None:
        client = Client([content])
        given.setdefault("content-length", str(len(content)))
    await app(scope_of(method, path, given, root, query), client.receive, send)
    if not sent:
        return None
    assert [message["type"] for message in sent] == ["http.response.start"] + ["http.response.body"] * (len(sent) - 1)
    assert [bool(message.get("more_body")) for message in sent[1:]] == [True] * (len(sent) - 2) + [False]
    found = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:]))


def asked(app: Callable[..., Any], method: str, path: str, body: object = None, **named: Any) -> Answer:
    """Return the answer to one request, in an event loop of its own."""
    answer = asyncio.run(asyncio.wait_for(ask(app, method, path, body, **named), 30))
    assert answer is not None
    return answer


def assert_near(found: ArrayLike, wanted: ArrayLike, bound: float = 1e-6) -> None:
    """Check that vectors differ by no more than a share of their norm."""
    one, other = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert one.shape == other.shape
    norms = np.linalg.norm(other, axis=-1, keepdims=True)
    worst = float((np.abs(one - other) / norms).max(initial=0))
    assert math.isfinite(worst)
    assert worst <= bound, worst
