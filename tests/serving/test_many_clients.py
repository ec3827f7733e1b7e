"""Many clients at once that are large, idle, slow or hang up: memory is bounded, and each gets its own answer."""

import asyncio
import base64
import json
import random
import re
import resource
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from support.server import RunningServer, until
from whiten import Encoder

pytestmark = pytest.mark.slow

HEAD = b"POST /v1/embeddings HTTP/1.1\r\nhost: test\r\ncontent-length: %d\r\n\r\n"
SMALL = b'{"input": "a small text"}'
LARGE = json.dumps({"input": ["word " * 190_000] * 33}).encode()


@pytest.fixture
def server(tiny_bundle: Path) -> Iterator[RunningServer]:
    """A server that may have 4,000 open files, as this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4000:
        pytest.skip("a process may not open 4,000 files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4000), hard))
    try:
        with RunningServer(f"tiny={tiny_bundle}", "--log", "off") as running:
            yield running
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def status(address: tuple[str, int], body: bytes) -> int:
    """Post a body, and return the status of the answer, which may come before the body has gone."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(HEAD % len(body))
    for start in range(0, len(body), 1 << 18):
        writer.write(memoryview(body)[start : start + (1 << 18)])
        await writer.drain()
    line = await asyncio.wait_for(reader.readline(), 120)
    writer.close()
    return int(line.split()[1])


async def small_ones(address: tuple[str, int], until: "asyncio.Task[object]") -> Counter[int]:
    """Post small texts one after another until a task ends, and count the statuses."""
    found: Counter[int] = Counter()
    while not until.done() or not found:
        found[await status(address, SMALL)] += 1
    return found


def test_two_hundred_bodies_of_32_mb(server: RunningServer) -> None:
    async def run() -> tuple[Counter[int], Counter[int]]:
        large = asyncio.gather(*(status(server.address, LARGE) for _ in range(200)))
        task: asyncio.Task[list[int]] = asyncio.ensure_future(large)  # type: ignore[arg-type, assignment]
        return await small_ones(server.address, task), Counter(await task)

    small, large = asyncio.run(asyncio.wait_for(run(), 600))
    assert set(small) == {200}
    assert set(large) == {200, 429}
    lines = Path(f"/proc/{server.process.pid}/status").read_text("ascii").splitlines()
    (peak,) = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    assert peak <= 600_000, f"{peak // 1000} MB were resident"
    assert server.call("POST", "/v1/embeddings", json.loads(LARGE)).status_code == 200, "nothing was given back"


REQUESTS = 20_000
"""Requests of all clients, which take some 20 s. With 200,000 it is three minutes, and the same is found."""

CLIENTS = 64
WORDS = ["a", "the", "man", "plays", "guitar", "river", "17", "under", "Über", "naïve", "東京", "😀", ",", "end"]
CLOSE = 1e-6
"""Distance of a vector from that of `Encoder.encode`, relative to its norm."""


def texts() -> list[str]:
    generator = random.Random(0)
    return [" ".join(generator.choices(WORDS, k=generator.randint(1, 3))) for _ in range(500)]


def request(text: str) -> bytes:
    body = json.dumps({"input": text, "encoding_format": "base64"}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nhost: test\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Client:
    """Sends requests on one connection after another, and hangs up on half of them."""

    def __init__(self, address: tuple[str, int], expected: dict[str, np.ndarray], seed: int) -> None:
        self.address, self.expected, self.random = address, expected, random.Random(seed)
        self.answers = self.hung_up = 0

    async def run(self, count: int) -> None:
        pool = list(self.expected)
        streams = None
        for _ in range(count):
            reader, writer = streams or await asyncio.open_connection(*self.address)
            text = self.random.choice(pool)
            if self.random.random() < 0.5:
                await self.hang_up(request(text), reader, writer)
                streams = None
                self.hung_up += 1
                continue
            writer.write(request(text))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = int(re.search(rb"content-length: (\d+)", head.lower())[1])  # type: ignore[index]
            found = json.loads(await reader.readexactly(length))["data"][0]["embedding"]
            vector = np.frombuffer(base64.b64decode(found), np.float32)
            assert np.linalg.norm(vector - self.expected[text]) <= CLOSE * np.linalg.norm(vector), text
            self.answers += 1
            streams = reader, writer
        if streams is not None:
            streams[1].close()

    async def hang_up(self, data: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """End a connection before, during or after its request, or within its answer, in one of two ways."""
        writer.write(data[: self.random.choice([0, len(data) // 2, len(data) - 1, len(data), len(data), len(data)])])
        after = self.random.randrange(4)
        if after == 1:
            await asyncio.sleep(self.random.random() * 0.01)
        elif after == 2 and self.random.random() < 0.5:
            await asyncio.wait({asyncio.ensure_future(reader.read(1))}, timeout=0.01)
        if self.random.random() < 0.5:  # a reset, in place of an end
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort() if self.random.random() < 0.5 else writer.close()


def test_each_answer_is_that_of_its_text_and_nothing_stays(golden: Path) -> None:
    bundle = golden / "bundle-v1-int8"
    with Encoder(bundle) as encoder:
        expected = {text: encoder.encode(text) for text in texts()}
    with RunningServer(bundle, "--log", "off", "--timeout", "60s") as server:
        files = Path(f"/proc/{server.process.pid}/fd")
        before = len(list(files.iterdir())) if files.exists() else 0
        clients = [Client(server.address, expected, seed) for seed in range(CLIENTS)]

        async def load() -> None:
            await asyncio.gather(*(client.run(REQUESTS // CLIENTS) for client in clients))

        asyncio.run(load())
        answers, hung_up = (sum(getattr(one, name) for one in clients) for name in ("answers", "hung_up"))
        assert answers + hung_up == REQUESTS // CLIENTS * CLIENTS
        assert 0.4 < hung_up / (answers + hung_up) < 0.6

        def is_idle() -> bool:
            page = server.call("GET", "/metrics").text
            zero = ("queue_tokens", "queue_requests", "lanes_busy", "queue_work_seconds")
            return all(f"\nwhiten_{name} 0.0" in page for name in zero)

        until(is_idle)
        page = server.call("GET", "/metrics").text
        counted = re.findall(r'whiten_requests_total\{.*route="/v1/embeddings",status="200"\} (\S+)', page)
        assert sum(map(float, counted)) >= answers
        until(lambda: not files.exists() or len(list(files.iterdir())) <= before + 2)
        assert not any("Traceback" in line or "error" in line.lower() for line in server.lines)
