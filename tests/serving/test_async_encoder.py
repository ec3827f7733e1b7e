"""Test `AsyncEncoder`: vectors, timeouts, cancelled tasks, and several event loops with one encoder."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from support.corpus import sentences
from support.runners import FakeRunner
from support.vectors import worst
from whiten import Encoder
from whiten_serving import AsyncEncoder, DeadlineExceededError

CLOSE = 1e-5
"""Distance of a vector from that of `Encoder.encode`, relative to its norm, as in test_batcher.py."""


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine, and fail if it takes a minute."""

    async def limited() -> Any:
        async with asyncio.timeout(60):
            return await main

    return asyncio.run(limited())


@asynccontextmanager
async def with_runner(encoder: Encoder, runner: FakeRunner, **options: Any) -> AsyncIterator[AsyncEncoder]:
    """Open an `AsyncEncoder` of one lane on a runner, which is held no longer when the block ends."""
    async with AsyncEncoder(encoder, lanes=1, **options) as made:
        made._queue.runner = runner
        try:
            yield made
        finally:
            runner.open.set()


async def begun(runner: FakeRunner, task: "asyncio.Task[Any]") -> "asyncio.Task[Any]":
    """Return a task when a batch of it runs."""
    assert await asyncio.to_thread(runner.begun.acquire, timeout=30)
    return task


async def rested(encoder: AsyncEncoder) -> None:
    """Return when no lane computes."""
    while encoder.stats().lanes_busy:
        await asyncio.sleep(0.001)


def test_the_time_that_tokenising_takes_is_part_of_the_timeout(tiny: Encoder) -> None:
    texts = [f"a text of some words that is number {number}" for number in range(20_000)]

    async def main() -> None:
        runner = FakeRunner()
        async with with_runner(tiny, runner) as encoder:
            with pytest.raises(DeadlineExceededError):
                await encoder.encode(texts, timeout=0.01)
        assert runner.texts == 0

    run(main())


def test_tasks_that_are_ready_together_share_a_batch(tiny: Encoder) -> None:
    async def main() -> None:
        runner = FakeRunner()
        async with with_runner(tiny, runner) as encoder:
            await encoder.encode("first")
            while len(runner.batches[-1][0]) < 9:  # but for those that a lane takes that does not sleep yet
                await rested(encoder)
                await asyncio.gather(*(encoder.encode(f"text {number}") for number in range(9)))

    run(main())


def test_loops_of_several_threads_share_an_encoder(tiny: Encoder) -> None:
    """Begin requests in several loops at once: none must be told to another loop."""
    encoder, texts = AsyncEncoder(tiny), sentences(60)
    want, found = tiny.encode(texts), []
    barrier = threading.Barrier(3)

    async def main() -> None:
        for _ in range(5):
            barrier.wait(30)
            found.append(np.stack(await asyncio.gather(*map(encoder.encode, texts))))

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: run(main()), range(3)))
    assert len(found) == 15
    assert all(worst(vectors, want) <= CLOSE for vectors in found)
    run(encoder.close())


def test_a_loop_that_is_closed_while_a_batch_runs_harms_nobody(tiny: Encoder) -> None:
    runner, encoder = FakeRunner(held=True), AsyncEncoder(tiny, lanes=1)
    encoder._queue.runner = runner

    async def main() -> None:
        await begun(runner, asyncio.create_task(encoder.encode("left behind")))

    run(main())
    runner.open.set()

    async def later() -> None:
        assert (await encoder.encode("a")).shape == (3,)
        await encoder.close()

    run(later())


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_the_timeout_error_of_the_texts_is_the_callers(tiny: Encoder, timeout: float | None) -> None:
    def rows() -> Iterator[str]:
        yield "a"
        raise TimeoutError("the database did not answer")

    async def main() -> None:
        async with AsyncEncoder(tiny) as encoder:
            with pytest.raises(TimeoutError, match="^the database did not answer$"):
                await encoder.encode(rows(), timeout=timeout)

    run(main())
