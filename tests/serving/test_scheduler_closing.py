"""Test what is computed, and what callers get, when lanes or their process end."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.lanes import Ended, Opened, held, request_of, rest
from support.runners import FakeRunner, vectors_of
from support.server import until
from whiten_runtime.errors import ClosedError, RunError, WhitenError
from whiten_runtime.inference.batching import Schedule
from whiten_serving.scheduler import Scheduler


def test_closing_while_others_submit_loses_no_request(opened: Opened) -> None:
    lanes, runner, ended = opened(2), FakeRunner(token_seconds=1e-4), Ended()
    taken, refused = [], []

    def submit(first: int) -> None:
        for number in range(200):
            request = request_of(runner, [first, number], *[[number]] * (number % 9), done=ended)
            try:
                lanes.submit(request)
            except WhitenError:
                refused.append(request)
            else:
                taken.append(request)

    with ThreadPoolExecutor(4) as threads:
        submitting = threads.map(submit, range(4))
        time.sleep(0.005)
        lanes.close()
        list(submitting)
    ended.wait(len(taken))
    for request in taken:
        np.testing.assert_array_equal(request.result, vectors_of(request.texts.ids))
    assert len(taken) + len(refused) == 800
    stats = lanes.stats()
    assert (stats.queue_tokens, stats.queue_requests) == (0, 0)
    assert stats.counted.texts == runner.texts == sum(len(request.texts.ids) for request in taken)
    assert stats.counted.tokens == sum(request.tokens for request in taken)
    assert stats.counted.batches == len(runner.batches)


@pytest.mark.parametrize("end", [lambda lanes, runner: lanes.end(runner), lambda lanes, runner: lanes.close()])
def test_an_end_computes_what_waits_for_a_wake_that_never_comes(opened: Opened, end: Callable[..., None]) -> None:
    """As where an event loop was stopped between queueing a request and waking a lane."""
    lanes, runner, ended = opened(2), FakeRunner(), Ended()
    rest(lanes)
    request = request_of(runner, [1], done=ended)
    lanes.submit(request, wake=False)
    ending = threading.Thread(target=end, args=[lanes, runner], daemon=True)
    ending.start()
    ending.join(30)
    assert not ending.is_alive()
    assert request.result is not None


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("end", [Scheduler.end, lambda lanes, runner, wait: lanes.close(wait)], ids=["end", "close"])
def test_a_function_that_is_called_by_an_end_may_end_too(opened: Opened, end: Callable[..., None], wait: bool) -> None:
    lanes, runner, _, first = held(opened)
    requests = [request_of(runner, [place]) for place in range(3)]
    for request in requests:
        request.done = lambda ended: end(lanes, runner, wait)
        lanes.submit(request)
    ending = threading.Thread(target=end, args=[lanes, runner, False], daemon=True)
    ending.start()
    until(lambda: all(request.finished for request in requests))
    runner.open.set()
    ending.join(30)
    assert not ending.is_alive()
    assert first[0].result is not None


class CallingRunner(FakeRunner):
    """Calls a function in each batch, as an object does that the garbage collector ends there."""

    def __init__(self, function: Callable[[], object], schedule: Schedule | None = None) -> None:
        super().__init__(schedule=schedule)
        self._function = function

    def run_batch(self, *batch: Any, **options: Any) -> NDArray[np.float32]:
        self._function()
        return super().run_batch(*batch, **options)


@pytest.mark.parametrize("end", ["close", "end"])
def test_an_end_in_a_lane_waits_for_nobody(opened: Opened, end: str) -> None:
    lanes, ended = opened(2), Ended()
    runner = CallingRunner(lambda: lanes.close() if end == "close" else lanes.end(runner))
    request = request_of(runner, [1], done=ended)
    lanes.submit(request)
    ended.wait(1)
    assert request.error is None
    lanes.close()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("end", [lambda lanes, runner: lanes.end(runner), lambda lanes, runner: lanes.close()])
def test_a_function_that_is_called_in_the_callers_thread_may_end_too(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, end: Callable[..., None], late: bool
) -> None:
    monkeypatch.setattr("whiten_serving.scheduler._INLINE_SECONDS", np.inf)
    lanes, runner = opened(), FakeRunner()
    rest(lanes)
    request = request_of(runner, [1], deadline=0.0 if late else np.inf)
    request.done = lambda ended: end(lanes, runner)
    lanes.submit(request, wake=False)
    begun = threading.Thread(target=lanes.compute_or_wake, daemon=True)
    begun.start()
    begun.join(30)
    assert not begun.is_alive()
    assert (request.result is None) == late


@pytest.mark.parametrize("texts", [1, 3])
def test_an_interrupt_in_the_callers_thread_fails_its_batch(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, texts: int
) -> None:
    """The next request is computed, and no lane waits for a batch that has ended."""
    monkeypatch.setattr("whiten_serving.scheduler._INLINE_SECONDS", np.inf)
    lanes, ended, interrupts = opened(2), Ended(), [KeyboardInterrupt()]

    def interrupt() -> None:
        if interrupts:
            raise interrupts.pop()

    runner = CallingRunner(interrupt, Schedule(1, 1))
    rest(lanes)
    request = request_of(runner, *[[1]] * texts, done=ended)
    lanes.submit(request, wake=False)
    with pytest.raises(KeyboardInterrupt):
        lanes.compute_or_wake()
    assert isinstance(request.error, RunError)
    lanes.submit(request_of(runner, [1], done=ended))
    until(lambda: any(one.result is not None for one in ended.requests))
    lanes.close()
    assert lanes.stats().lanes_busy == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("reason", [KeyboardInterrupt, GeneratorExit])
def test_what_ends_a_lane_fails_its_batch(opened: Opened, reason: type[BaseException]) -> None:
    def fail() -> None:
        raise reason

    lanes, ended = opened(2), Ended()
    runner, other = CallingRunner(fail), FakeRunner()
    lanes.submit(request_of(runner, [1], done=ended))
    ended.wait(1)
    assert isinstance(ended.requests[0].error, RunError)
    lanes.end(runner)
    until(lambda: lanes.stats().lanes_busy == 0)
    lanes.submit(request_of(other, [1], done=ended))
    ended.wait(2)
    assert ended.requests[1].error is None


def test_whoever_waits_for_an_end_takes_no_signal_from_a_lane(opened: Opened) -> None:
    """While one thread waits for a runner's end, a request of another runner wakes an idle lane at once."""
    lanes, runner, ended = opened(2), FakeRunner(held=True), Ended()
    other = FakeRunner()
    lanes.submit(request_of(runner, [1], done=ended))
    lanes.submit(request_of(other, [1], done=ended))  # the second lane, idle afterwards
    ended.wait(1)
    until(lambda: lanes.stats().lanes_busy == 1)
    waiters = [threading.Thread(target=lanes.end, args=[runner]) for _ in range(3)]
    for thread in waiters:
        thread.start()
    time.sleep(0.05)
    for number in range(2, 6):
        lanes.submit(request_of(other, [1], done=ended))
        ended.wait(number)
    runner.open.set()
    for thread in waiters:
        thread.join(30)
        assert not thread.is_alive()


def test_a_forked_child_is_refused_though_a_lane_held_the_lock(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, runner = opened(), FakeRunner()
    request = request_of(runner, [1])
    with ThreadPoolExecutor(1) as holder:
        holder.submit(lanes._changed.acquire).result()
        monkeypatch.setattr("os.getpid", lambda: -1)
        for call in (
            lambda: lanes.submit(request),
            lambda: lanes.check_room([runner]),
            lanes.stats,
            lambda: lanes.begin(runner),
        ):
            with pytest.raises(ClosedError):
                call()
        lanes.cancel(request)
        lanes.end(runner)
        lanes.close()
        monkeypatch.undo()
        holder.submit(lanes._changed.release).result()
