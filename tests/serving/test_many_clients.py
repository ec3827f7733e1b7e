"""Many large bodies at once, idle connections and slow clients: memory is bounded, and others are answered."""

import asyncio
import json
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server import RunningServer

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
        with RunningServer(f"tiny={tiny_bundle}", "--no-access-log") as running:
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

    small, large = asyncio.run(asyncio.wait_for(run(), 300))
    assert set(small) == {200}
    assert set(large) == {200, 429}
    lines = Path(f"/proc/{server.process.pid}/status").read_text("ascii").splitlines()
    (peak,) = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    assert peak <= 600_000, f"{peak // 1000} MB were resident"
    assert server.call("POST", "/v1/embeddings", json.loads(LARGE)).status_code == 200, "nothing was given back"


def test_idle_connections_and_clients_that_send_a_byte_at_a_time(server: RunningServer) -> None:
    async def drip(content: bytes) -> None:
        _, writer = await asyncio.open_connection(*server.address)
        for byte in content:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.5)

    async def run() -> Counter[int]:
        idle = [await asyncio.open_connection(*server.address) for _ in range(1000)]
        whole = HEAD % len(SMALL) + SMALL
        dripping = [asyncio.create_task(drip(part)) for part in (whole, whole[50:], b"GET / HTTP/1.1\r\na: ") * 50]
        begun = [await asyncio.open_connection(*server.address) for _ in range(100)]
        for _, writer in begun:
            writer.write(HEAD % 31_000_000 + b'{"inp')  # they reserve memory, and send no more
        found = Counter([await status(server.address, SMALL) for _ in range(50)])
        for task in dripping:
            task.cancel()
        for _, writer in idle + begun:
            writer.close()
        return found

    assert asyncio.run(asyncio.wait_for(run(), 120)) == {200: 50}
