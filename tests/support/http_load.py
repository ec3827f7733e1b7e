"""A client of HTTP for load: raw asyncio, keep-alive, one request at a time a connection."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Load:
    """Counts what a load of requests met.

    Attributes:
        answers: number of answers by status.
        lost: requests that were sent and not answered: a description of each.
        refused: connections that were refused, because nothing listens any more.
        times: seconds of each answer with status 200.
        refusals: seconds of each answer with status 429.
        bodies: bodies that `keep` asked for, with the text that was sent.
    """

    answers: Counter[int] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    refused: int = 0
    times: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    bodies: list[tuple[str, Any]] = field(default_factory=list)


class Client:
    """Sends requests over one connection that is opened anew when the server closes it.

    Args:
        address: host and port.
        load: what is counted.
        keep: whether bodies are kept.
    """

    def __init__(self, address: tuple[str, int], load: Load, keep: bool = False) -> None:
        self._address = address
        self._load = load
        self._keep = keep
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, path: str, body: object, name: str = "") -> int | None:
        """Send a request; return its status, or None if it was lost or nothing listens."""
        data = json.dumps(body).encode()
        length = f"content-type: application/json\r\ncontent-length: {len(data)}"
        head = f"POST {path} HTTP/1.1\r\nhost: test\r\n{length}\r\n\r\n"
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(*self._address, limit=2**26)
        except ConnectionRefusedError:
            self._load.refused += 1
            return None
        except OSError as error:
            self._load.lost.append(f"connecting: {error!r}")
            return None
        start = time.perf_counter()
        try:
            status, headers, answer = await self._exchange(head.encode() + data)
        except (OSError, asyncio.IncompleteReadError) as error:
            self._load.lost.append(repr(error))
            self.close()
            return None
        seconds = time.perf_counter() - start
        self._load.answers[status] += 1
        if status == 200:
            self._load.times.append(seconds)
            if self._keep:
                self._load.bodies.append((name, json.loads(answer)))
        elif status == 429:
            self._load.refusals.append(seconds)
        if headers.get("connection") == "close":
            self.close()
        return status

    async def _exchange(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        assert self._streams is not None
        reader, writer = self._streams
        writer.write(data)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, body

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def closed_loop(
    address: tuple[str, int],
    clients: int,
    bodies: Callable[[int], tuple[str, object]],
    stop: Callable[[], bool],
    keep: bool = False,
    path: str = "/v1/embeddings",
) -> Load:
    """Let clients send one request after another until `stop`, or until nothing listens any more.

    Args:
        address: host and port.
        clients: number of connections.
        bodies: function from the number of a request to its name and body.
        stop: function that is asked before each request.
        keep: whether bodies of answers are kept.
        path: path of all requests.
    """
    load, sent = Load(), 0

    async def one() -> None:
        nonlocal sent
        client = Client(address, load, keep)
        while not stop() and not load.refused:
            name, body = bodies(sent)
            sent += 1
            await client.send(path, body, name)
        client.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return load


async def open_loop(
    address: tuple[str, int], rate: float, seconds: float, body: object, path: str = "/v1/embeddings"
) -> Load:
    """Send requests at a rate that does not depend on the answers, on as many connections as that takes.

    Args:
        address: host and port.
        rate: requests a second.
        seconds: how long.
        body: body of all requests.
        path: path of all requests.
    """
    load, idle, running = Load(), [], set()

    async def one() -> None:
        client = idle.pop() if idle else Client(address, load)
        await client.send(path, body)
        idle.append(client)

    start = time.monotonic()
    sent = 0
    while (now := time.monotonic() - start) < seconds:
        while sent < now * rate:
            task = asyncio.ensure_future(one())
            running.add(task)
            task.add_done_callback(running.discard)
            sent += 1
        await asyncio.sleep(1 / rate)
    await asyncio.gather(*running)
    for client in idle:
        client.close()
    return load
