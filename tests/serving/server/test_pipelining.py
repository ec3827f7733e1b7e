"""Requests that are sent before the last one was answered: none loses an answer, whatever follows it."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.server import Answer
from whiten_serving.server.graceful import make_server
from whiten_serving.server.guards import Guards

pytestmark = pytest.mark.slow

LIVE = b"GET /live HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer with the number of bytes of the body, after the time that the path says."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await asyncio.sleep(float(scope["path"].removeprefix("/wait/")) if scope["path"].startswith("/wait/") else 0)
    body = str(size).encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


async def served(talk: Talk, **bounds: Any) -> bytes:
    """Return what a client gets of a server with bounds."""
    guards = Guards(**{"connections": 10, "header_bytes": 32_768, "header_seconds": 0.3, "idle_seconds": 5.0} | bounds)
    listening = asyncio.Event()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        server = make_server(application, guards, 5.0, 5.0, None, listening.set)
        serving = asyncio.create_task(server.serve([sock]))
        await listening.wait()
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        try:
            return await asyncio.wait_for(talk(reader, writer), 20)
        finally:
            writer.close()
            server.should_exit = True
            await serving


def run(talk: Talk, **bounds: Any) -> bytes:
    return asyncio.run(served(talk, **{"stall_seconds": 5.0} | bounds))


def statuses(found: bytes) -> list[int]:
    return [int(part[:3]) for part in found.split(b"HTTP/1.1 ")[1:]]


def post(path: str, size: int) -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n".encode() + b"x" * size


@pytest.mark.parametrize("size", [0, 2000, 40_000, 200_000])
def test_the_next_request_begins_in_the_segment_of_a_body(size: int) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(post("/", size) + LIVE[:20])
        await asyncio.sleep(0.2)
        writer.write(LIVE[20:])
        return await reader.read()

    found = run(talk, header_seconds=5.0)
    assert statuses(found) == [200, 200]
    assert f"\r\n\r\n{size}HTTP/1.1".encode() in found


REFUSED = {
    "slow": (b"GET /live HTTP/1.1\r\nho", 408, "slow_headers"),
    "too long": (b"GET /live HTTP/1.1\r\nx: " + b"a" * 600_000, 431, "headers_too_large"),
    "too many": (b"GET /live HTTP/1.1\r\n" + b"x: y\r\n" * 10_000, 431, "headers_too_large"),
    "a bad chunk": (
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        400,
        "invalid_http",
    ),
    "no HTTP": (b"nonsense\r\n\r\n", 400, "invalid_http"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("before", [1, 3])
def test_what_is_refused_takes_no_answer_from_earlier_requests(name: str, before: int) -> None:
    """They are answered first, and the refusal is the last answer of the connection."""
    data, status, code = REFUSED[name]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(post("/wait/0.6", 10) * before + data)
        return await reader.read()

    found = run(talk)
    assert statuses(found) == [200] * before + [status]
    assert Answer.of(found[found.rindex(b"HTTP/1.1 ") :]).json()["error"]["code"] == code


def test_nothing_is_read_after_a_refusal() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(post("/wait/0.6", 10) + b"nonsense\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.write(LIVE)
        return await reader.read()

    assert statuses(run(talk)) == [200, 400]


def test_slow_bodies_behind_a_request_that_runs() -> None:
    """The second request's body is late while the first is computed, and later still when it is its turn."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(post("/wait/1", 10) + post("/", 1000)[:-10])
        return await reader.read()

    found = run(talk, stall_seconds=0.3)
    assert statuses(found) == [200, 408]
    assert json.loads(found[found.rindex(b"\r\n\r\n") :])["error"]["code"] == "slow_body"
