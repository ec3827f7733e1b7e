"""Test `AsyncEncoder`: vectors, timeouts, cancelled tasks, and several event loops with one encoder."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from support.corpus import sentences
from support.runners import FakeRunner, vectors_of
from support.vectors import token_ids, worst
from whiten import Encoder
from whiten_runtime.inference.embedder import Embedder
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


@pytest.mark.parametrize(
    ("texts", "prompt"), [("long " * 5000, None), ([""] * 50_000, None), (["a"] * 100, "long " * 500)]
)
def test_many_tokens_are_made_in_another_thread(
    tiny: Encoder, texts: Any, prompt: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    tokenize = Embedder.tokenize

    def noted(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return tokenize(*args, **options)

    monkeypatch.setattr(Embedder, "tokenize", noted)

    async def main() -> None:
        async with with_runner(tiny, FakeRunner()) as encoder:
            await encoder.encode(texts, prompt=prompt)
            assert threads.pop() is not threading.current_thread()
            await encoder.encode("short")
            assert threads.pop() is threading.current_thread()

    run(main())


@pytest.mark.parametrize("timeout", [0, -1, 0.05])
def test_a_timeout_ends_and_drops_what_waits(tiny: Encoder, timeout: float) -> None:
    async def main() -> None:
        runner = FakeRunner(held=True)
        async with with_runner(tiny, runner) as encoder:
            first = await begun(runner, asyncio.create_task(encoder.encode("first")))
            with pytest.raises(DeadlineExceededError, match="not computed within"):
                await encoder.encode(["a", "b"], timeout=timeout)
            assert encoder.stats().queue_requests == 0
            runner.open.set()
            assert (await first).shape == (3,)
            assert runner.texts == 1

    run(main())


def test_the_time_that_tokenising_takes_is_part_of_the_timeout(tiny: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize = Embedder.tokenize

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(0.3)
        return tokenize(*args, **options)

    async def main() -> None:
        runner = FakeRunner()
        async with with_runner(tiny, runner) as encoder:
            monkeypatch.setattr(Embedder, "tokenize", slow)
            with pytest.raises(DeadlineExceededError):
                await encoder.encode("a " * 5000, timeout=0.1)
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
    """Begin requests in several loops in turns: none must be told to another loop."""
    encoder, texts = AsyncEncoder(tiny), sentences(60)
    want, found = tiny.encode(texts), []
    barrier = threading.Barrier(3)

    async def client(text: str) -> Any:
        barrier_passed = await asyncio.to_thread(barrier.wait, 30) if text is texts[0] else None
        request = await encoder._queue.request_in_loop(text)
        await asyncio.sleep(0.002)  # meanwhile the other loops begin requests
        del barrier_passed
        return await encoder._queue.answer(request)

    async def main() -> None:
        for _ in range(5):
            found.append(np.stack(await asyncio.gather(*map(client, texts))))

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


class ThreadRunner(FakeRunner):
    """Notes in which thread each batch ran."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def run_batch(self, *arguments: Any, **named: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        return super().run_batch(*arguments, **named)


@pytest.mark.parametrize(
    ("bound", "tasks", "own"), [(60.0, 1, True), (0.0, 1, False), (60.0, 2, False)], ids=["quick", "slow", "two"]
)
def test_a_quick_text_that_is_by_itself_is_computed_without_a_lane(
    tiny: Encoder, monkeypatch: pytest.MonkeyPatch, bound: float, tasks: int, own: bool
) -> None:
    monkeypatch.setattr("whiten_serving.scheduler._INLINE_SECONDS", bound)

    async def main() -> None:
        runner = ThreadRunner()
        async with with_runner(tiny, runner) as encoder:
            await encoder.encode("a")  # measured in a lane
            await rested(encoder)
            assert runner.threads == ["whiten-lane"]
            texts = ["b", "c"][:tasks]
            for text, vector in zip(texts, await asyncio.gather(*map(encoder.encode, texts)), strict=True):
                ids = token_ids(tiny, [text])
                assert np.array_equal(vector, vectors_of(ids)[0])
            here = threading.current_thread().name
            assert set(runner.threads[1:]) == ({here} if own else {"whiten-lane"})
            await rested(encoder)
            assert encoder.stats().queue_tokens == 0

    run(main())


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
