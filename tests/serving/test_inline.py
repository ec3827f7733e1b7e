"""Batches that a caller's thread computes itself: a lane goes on with what waits then, whatever came meanwhile."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.runners import FakeRunner, vectors_of
from support.server import until
from support.vectors import worst
from whiten import Encoder
from whiten_runtime.errors import ClosedError, RunError, WhitenError
from whiten_runtime.inference.batching import Schedule
from whiten_runtime.inference.engine import TokenizedTexts
from whiten_serving import AsyncEncoder
from whiten_serving.requests import DeadlineExceededError, Request
from whiten_serving.scheduler import Scheduler

ROWS = [[1], [2] * 8, [3] * 3, [4] * 8]
"""Texts of a request of three batches or more."""


class MeanwhileRunner(FakeRunner):
    """Runs one batch at a time, and calls a function while the thread that made it computes its next one."""

    def __init__(self) -> None:
        super().__init__(schedule=Schedule(1, 8))
        self.meanwhile: Callable[[], object] | None = None
        self.maker, self.inline = threading.current_thread(), 0

    def run_batch(self, *arguments: Any, **named: Any) -> Any:
        if threading.current_thread() is self.maker:
            self.inline += 1
            call, self.meanwhile = self.meanwhile, None
            if call is not None:
                call()
        return super().run_batch(*arguments, **named)


@pytest.fixture(params=[1, 3], ids=["1 lane", "3 lanes"])
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    monkeypatch.setattr("whiten_serving.scheduler._INLINE_SECONDS", 60.0)
    scheduler = Scheduler(request.param)
    yield scheduler
    scheduler.close(wait=False)


@pytest.fixture
def runner(lanes: Scheduler) -> MeanwhileRunner:
    """A runner of which a text is measured, with all lanes asleep: the next request begins in the caller's thread."""
    runner = MeanwhileRunner()
    first = request_of(runner, [1])
    lanes.submit(first)
    until(lambda: first.finished and lanes._asleep == lanes.lanes and not lanes.stats().lanes_busy)
    return runner


def request_of(runner: FakeRunner, *rows: list[int]) -> Request:
    return Request(runner, TokenizedTexts(list(rows), 0), np.asarray, lambda request: None)


def begin(lanes: Scheduler, request: Request) -> Request:
    """Queue a request, and compute its first batch here."""
    lanes.submit(request, wake=False)
    lanes.compute_or_wake()
    return request


def in_thread(call: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=call, args=arguments, daemon=True)
    thread.start()
    return thread


def check(*requests: Request) -> None:
    """Wait for the vectors of requests."""
    for request in requests:
        until(lambda: request.finished and request.result is not None)  # noqa: B023
        np.testing.assert_array_equal(request.result, vectors_of(request.texts.ids))


@pytest.mark.parametrize("count", [1, 2, 4, 40])
def test_a_lane_computes_the_other_batches_of_the_request(
    lanes: Scheduler, runner: MeanwhileRunner, count: int
) -> None:
    check(begin(lanes, request_of(runner, *(ROWS * 10)[:count])))
    assert runner.inline == 1
    until(lambda: lanes.stats().lanes_busy == 0)
    assert lanes.stats().queue_tokens == 0


@pytest.mark.parametrize("others", [1, 3])
@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("outcome", ["computed", "cancelled", "late", "closed"])
def test_what_comes_meanwhile_is_computed_whatever_becomes_of_the_request(
    lanes: Scheduler, runner: MeanwhileRunner, others: int, loop: bool, outcome: str
) -> None:
    request = request_of(runner, *ROWS)
    more = [request_of(runner, *ROWS[: number + 1]) for number in range(others)]
    closing: list[threading.Thread] = []

    def meanwhile() -> None:
        for other in more:
            in_thread(begin if loop else Scheduler.submit, lanes, other).join()
        if outcome == "cancelled":
            lanes.cancel(request)
        if outcome == "late":
            request.deadline = 0.0
        if outcome == "closed":
            closing.append(in_thread(lanes.close, False))
            until(lambda: request.finished)

    runner.meanwhile = meanwhile
    begin(lanes, request)
    until(lambda: request.finished)
    if outcome == "closed":
        closing[0].join(30)
        assert not closing[0].is_alive()
        assert all(isinstance(other.error, ClosedError) or other.result is not None for other in (request, *more))
        return
    if outcome == "computed":
        check(request)
    if outcome == "late":
        assert isinstance(request.error, DeadlineExceededError)
    check(*more, begin(lanes, request_of(runner, *ROWS)))
    until(lambda: lanes.stats().lanes_busy == lanes.stats().queue_tokens == 0)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("end", [lambda lanes, runner: lanes.close(), lambda lanes, runner: lanes.end(runner)])
def test_a_callback_in_the_callers_thread_may_close(
    lanes: Scheduler, runner: MeanwhileRunner, end: Callable[[Scheduler, FakeRunner], None], late: bool
) -> None:
    request = request_of(runner, [1])
    request.done = lambda request: end(lanes, runner)
    request.deadline = 0.0 if late else np.inf
    begun = in_thread(begin, lanes, request)
    begun.join(30)
    assert not begun.is_alive()
    assert isinstance(request.error, DeadlineExceededError) == late


@pytest.mark.parametrize("end", [lambda lanes, runner: lanes.close(), lambda lanes, runner: lanes.end(runner)])
def test_an_end_meanwhile_waits_for_all_batches(
    lanes: Scheduler, runner: MeanwhileRunner, end: Callable[[Scheduler, FakeRunner], None]
) -> None:
    threads: list[threading.Thread] = []

    def meanwhile() -> None:
        threads.append(in_thread(end, lanes, runner))
        until(lambda: lanes._closed or runner in lanes._ended)
        threads[0].join(0.1)
        assert threads[0].is_alive()

    runner.meanwhile = meanwhile
    request = begin(lanes, request_of(runner, *ROWS))
    threads[0].join(30)
    assert not threads[0].is_alive()
    check(request)
    with pytest.raises(ClosedError):
        lanes.submit(request_of(runner, [1]))


def test_an_interrupt_fails_the_request_and_the_next_is_computed(lanes: Scheduler, runner: MeanwhileRunner) -> None:
    def meanwhile() -> None:
        raise KeyboardInterrupt

    request, runner.meanwhile = request_of(runner, *ROWS), meanwhile
    with pytest.raises(KeyboardInterrupt):
        begin(lanes, request)
    assert isinstance(request.error, RunError)
    assert lanes.stats().lanes_busy == 0
    check(begin(lanes, request_of(runner, *ROWS)))


@pytest.mark.parametrize("rows", [ROWS[:1], ROWS])
def test_an_interrupt_before_a_batch_is_computed_fails_its_request(
    lanes: Scheduler, runner: MeanwhileRunner, rows: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupts, tell = [KeyboardInterrupt()], lanes._tell

    def told(requests: list[Request]) -> None:
        if interrupts:
            raise interrupts.pop()
        tell(requests)

    monkeypatch.setattr(lanes, "_tell", told)
    request = request_of(runner, *rows)
    with pytest.raises(KeyboardInterrupt):
        begin(lanes, request)
    assert isinstance(request.error, RunError)
    check(begin(lanes, request_of(runner, *ROWS)))
    closing = in_thread(lanes.close)
    closing.join(30)
    assert not closing.is_alive()


def test_requests_in_any_order_all_end(golden: Path) -> None:
    """Ask for one to eight texts of any lengths, alone or together, with some that are cancelled or late."""
    chance = random.Random(1)
    words = ["cat", "dog", "tree", "house", "river", "moon", "stone", "bird"]
    pool = [" ".join(chance.choices(words, k=count)) for count in (0, 1, 2, 3, 5, 8, 20) for _ in range(6)]

    async def one(made: AsyncEncoder, want: dict[str, Any]) -> None:
        texts = chance.choices(pool, k=chance.choice([1, 1, 2, 3, 8]))
        timeout = chance.choice([30.0, 30.0, 30.0, 0.001])
        task = asyncio.create_task(made.encode(texts, timeout=timeout))
        if chance.random() < 0.1:
            await asyncio.sleep(0)
            task.cancel()
        try:
            assert worst(await task, np.stack([want[text] for text in texts])) <= 1e-5
        except (asyncio.CancelledError, WhitenError):
            assert timeout < 1 or task.cancelled()

    async def main() -> None:
        with Encoder(golden / "bundle-v1", threads=1) as encoder:
            want = dict(zip(pool, encoder.encode(pool), strict=True))
            async with AsyncEncoder(encoder) as made:
                for _ in range(150):
                    await asyncio.gather(*(one(made, want) for _ in range(chance.choice([1, 1, 1, 4]))))

    asyncio.run(main())
