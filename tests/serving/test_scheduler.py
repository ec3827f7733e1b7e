"""Test lanes with a runner that is held, slow or failing: what is computed, and what callers get."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.runners import POISON, Clock, FakeRunner, vectors_of
from support.server import until
from whiten_runtime.errors import ClosedError, NoVectorError, RunError, UsageError, WhitenError
from whiten_runtime.inference.batching import Schedule
from whiten_runtime.inference.engine import Engine, TokenizedTexts
from whiten_serving import queue
from whiten_serving.requests import Batch, OverloadedError, Request, TooManyTokensError
from whiten_serving.scheduler import Scheduler

Opened = Callable[..., Scheduler]


class Ended:
    """Collects the requests that have their outcomes."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._changed = threading.Condition()

    def __call__(self, ended: Request) -> None:
        with self._changed:
            self.requests.append(ended)
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= count, 60), len(self.requests)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which batches are measured, whatever the machine does meanwhile."""
    clock = Clock()
    monkeypatch.setattr("whiten_serving.scheduler.time", clock)
    return clock


def request_of(
    runner: Engine,
    *ids: Sequence[int],
    prompt_tokens: int = 0,
    deadline: float = np.inf,
    done: Ended | None = None,
) -> Request:
    texts = TokenizedTexts([list(row) for row in ids], prompt_tokens)
    return Request(runner, texts, lambda vectors: vectors, done or Ended(), deadline)


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Return a function that makes lanes, which are closed when the test ends."""
    with ExitStack() as stack:

        def make(count: int = 1, **options: Any) -> Scheduler:
            lanes = Scheduler(count, **options)
            stack.callback(lanes.close, wait=False)
            return lanes

        yield make


def held(opened: Opened, count: int = 1, budget: int = 256) -> tuple[Scheduler, FakeRunner, Ended, list[Request]]:
    """Return lanes that are all busy with a request each, which their runner holds; its batches have a budget."""
    lanes, runner, ended = opened(count), FakeRunner(held=True, schedule=Schedule(64, budget)), Ended()
    first = [request_of(runner, [1], done=ended) for _ in range(count)]
    for request in first:
        lanes.submit(request)
        assert runner.begun.acquire(timeout=30)
    return lanes, runner, ended, first


def test_requests_of_several_threads_get_their_own_vectors(opened: Opened) -> None:
    lanes, runner, ended = opened(3), FakeRunner(token_seconds=1e-5), Ended()
    random = np.random.default_rng(0)
    requests = [
        request_of(runner, *(random.integers(0, 99, size) for size in random.integers(1, 20, count)), done=ended)
        for count in random.integers(1, 40, 60)
    ]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda start: [*map(lanes.submit, requests[start::6])], range(6)))
    ended.wait(60)
    for request in requests:
        np.testing.assert_array_equal(request.result, vectors_of(request.texts.ids))
    assert runner.texts == sum(len(request.texts.ids) for request in requests)
    until(lambda: lanes.stats().lanes_busy == 0)
    stats = lanes.stats()
    assert (stats.queue_tokens, stats.queue_requests, stats.counted.texts) == (0, 0, runner.texts)
    assert stats.counted.tokens == sum(request.tokens for request in requests)
    assert stats.counted.batches == len(runner.batches)


def test_the_vectors_of_a_request_do_not_change_with_the_batches_they_share(opened: Opened) -> None:
    """A result is the request's own array: writing to it changes nobody else's."""
    lanes, runner, ended, _ = held(opened)
    requests = [request_of(runner, [place], [place], done=ended) for place in range(4)]
    for request in requests:
        lanes.submit(request)
    runner.open.set()
    ended.wait(5)
    assert requests[0].result is not None
    requests[0].result[:] = 99
    np.testing.assert_array_equal(requests[1].result, vectors_of([[1], [1]]))


def test_a_request_that_leaves_midway_costs_the_batch_that_runs(opened: Opened) -> None:
    lanes, runner, ended = opened(), FakeRunner(held=True, schedule=Schedule(64, 2)), Ended()
    request = request_of(runner, *[[1]] * 100, done=ended)
    lanes.submit(request)
    assert runner.begun.acquire(timeout=30)
    lanes.cancel(request)
    runner.open.set()
    lanes.close()
    assert runner.texts <= 2
    assert not ended.requests


def test_a_text_that_fails_fails_its_request_alone(opened: Opened) -> None:
    lanes, runner, ended, _ = held(opened)
    requests = [request_of(runner, [place], [POISON if place == 3 else place], done=ended) for place in range(8)]
    for request in requests:
        lanes.submit(request)
    runner.open.set()
    ended.wait(9)
    for place, request in enumerate(requests):
        if place == 3:
            assert request.result is None
            assert isinstance(request.error, NoVectorError)
            assert request.error.index == 1
            assert str(request.error).startswith("texts[1] has no vector (onnxruntime failed: poison); ")
        else:
            np.testing.assert_array_equal(request.result, vectors_of(request.texts.ids))
    until(lambda: not lanes.stats().lanes_busy)
    assert lanes.stats().counted.texts == 1 + 15


def test_a_request_that_failed_is_not_computed_further(opened: Opened) -> None:
    lanes, runner, ended = opened(), FakeRunner(), Ended()
    lanes.submit(request_of(runner, *[[POISON]] * 20, done=ended))
    ended.wait(1)
    lanes.close()
    assert runner.texts == 20 + 1


def test_an_error_after_a_batch_fails_requests_and_no_lane(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, runner, ended = opened(), FakeRunner(), Ended()

    def keep(self: Request, indices: list[int], vectors: np.ndarray) -> bool:
        raise ValueError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Request, "store", keep)
        request = request_of(runner, [1], done=ended)
        lanes.submit(request)
        ended.wait(1)
        assert isinstance(request.error, ValueError)
    again = request_of(runner, [1], done=ended)
    lanes.submit(again)
    ended.wait(2)
    assert again.result is not None


def test_a_request_that_is_complete_is_told_though_memory_is_short_for_the_next_of_its_batch(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes, runner, ended, _ = held(opened)
    requests = [request_of(runner, [place], done=ended) for place in range(5)]
    keep = Request.store

    def short(self: Request, indices: list[int], vectors: np.ndarray) -> bool:
        if self is requests[2]:
            raise MemoryError
        return keep(self, indices, vectors)

    monkeypatch.setattr(Request, "store", short)
    for request in requests:
        lanes.submit(request)
    runner.open.set()
    ended.wait(6)
    assert [request.result is not None for request in requests] == [True, True, False, False, False]
    assert all(isinstance(request.error, MemoryError) for request in requests[2:])


def test_a_lane_goes_on_where_taking_fails_twice(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, runner, ended = opened(), FakeRunner(), Ended()
    failures = [MemoryError()] * 4
    take, first = queue.Queue.take, queue.Queue.first

    def short_at_first(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if failures:
                raise failures.pop()
            return function(*arguments)

        return call

    monkeypatch.setattr(queue.Queue, "take", short_at_first(take))
    monkeypatch.setattr(queue.Queue, "first", short_at_first(first))
    request = request_of(runner, [1, 2], done=ended)
    lanes.submit(request)
    ended.wait(1)
    assert request.result is not None


@pytest.mark.parametrize("where", ["companions", "token_budget"])
def test_the_oldest_request_fails_where_no_batch_can_be_formed(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """No lane ends of it, and nobody waits for ever: requests before and after it are computed."""
    lanes, runner, ended, _ = held(opened, budget=20)
    function = getattr(queue, where)

    def short(lengths: Sequence[int], *arguments: Any) -> object:
        if lengths[0] == 7:
            raise MemoryError
        return function(lengths, *arguments)

    monkeypatch.setattr(queue, where, short)
    monkeypatch.setattr(queue, "workers_for", lambda *_: 2)
    requests = [request_of(runner, [1] * length, [2] * length, done=ended) for length in (6, 7, 7, 8)]
    for request in requests:
        lanes.submit(request)
    runner.open.set()
    ended.wait(5)
    assert [type(request.error) for request in requests] == [type(None), MemoryError, MemoryError, type(None)]
    until(lambda: lanes.stats().lanes_busy == 0)
    assert (lanes.stats().queue_tokens, lanes.stats().queue_requests) == (0, 0)
    again = request_of(runner, [1], done=ended)
    lanes.submit(again)
    ended.wait(6)
    assert again.result is not None


@pytest.mark.parametrize("error", [ValueError("oops"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_callers_function_raises_ends_no_lane(
    opened: Opened, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(given: object) -> None:
        raise error

    lanes, runner, ended = opened(), FakeRunner(), Ended()
    lanes.on_batch = fail
    with caplog.at_level(logging.ERROR, "whiten.serving"):
        for _ in range(3):
            request = request_of(runner, [1])
            request.done = fail
            lanes.submit(request)
        last = request_of(runner, [1], done=ended)
        lanes.submit(last)
        ended.wait(1)
    assert last.result is not None
    assert any(record.exc_info and record.exc_info[1] is error for record in caplog.records)
    until(lambda: lanes.stats().lanes_busy == 0)


def test_finishing_that_raises_fails_its_request(opened: Opened) -> None:
    lanes, runner, ended = opened(), FakeRunner(), Ended()
    request = request_of(runner, [1], done=ended)

    def fail(vectors: np.ndarray) -> np.ndarray:
        raise UsageError("cannot be finished")

    request.finish = fail
    lanes.submit(request)
    ended.wait(1)
    assert str(request.error) == "cannot be finished"


def test_work_is_bounded_in_seconds_at_the_measured_rate(opened: Opened, clock: Clock) -> None:
    runner = FakeRunner(token_seconds=0.001, schedule=Schedule(64, 16), clock=clock)
    lanes, ended = opened(max_wait=0.5), Ended()
    for _ in range(20):  # 1 ms a token: 500 tokens may wait
        lanes.submit(request_of(runner, [1] * 16, done=ended))
    ended.wait(20)
    runner.open.clear()
    lanes.submit(request_of(runner, [1], done=ended))
    until(lambda: runner.texts == 21)
    accepted = 0
    while lanes.stats().queue_seconds <= 0.5:
        lanes.submit(request_of(runner, [1] * 16, done=ended))
        accepted += 1
    with pytest.raises(OverloadedError, match=r"s of work go before it \(limit 0.5 s") as error:
        lanes.submit(request_of(runner, [1] * 16))
    assert accepted == 32
    assert lanes.stats().queue_seconds == pytest.approx(0.512) == error.value.retry_after
    runner.open.set()
    ended.wait(21 + accepted)


def test_closing_without_waiting_fails_what_waits(opened: Opened) -> None:
    lanes, runner, ended, first = held(opened)
    requests = [request_of(runner, [place], done=ended) for place in range(9)]
    for request in requests:
        lanes.submit(request)
    closing = threading.Thread(target=lanes.close, args=[False])
    closing.start()
    until(lambda: all(request.finished for request in requests))
    runner.open.set()
    closing.join(60)
    assert first[0].result is not None
    assert {str(request.error) for request in requests} == {"the batcher was closed before this was computed"}
    assert runner.texts == 1


def test_closing_while_others_submit_loses_no_request(opened: Opened) -> None:
    lanes, runner, ended = opened(2), FakeRunner(token_seconds=1e-4), Ended()
    taken, refused = [], []

    def submit(_: int) -> None:
        for _ in range(200):
            request = request_of(runner, [1, 2], done=ended)
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
    assert all(request.result is not None for request in taken)
    assert len(taken) + len(refused) == 800


def test_ending_one_runner_without_waiting_fails_its_requests(opened: Opened) -> None:
    lanes, runner, ended, _ = held(opened)
    other = FakeRunner()
    waiting, others = request_of(runner, [5], done=ended), request_of(other, [6], done=ended)
    lanes.submit(waiting)
    lanes.submit(others)
    ending = threading.Thread(target=lanes.end, args=[runner, False])
    ending.start()
    until(lambda: waiting.finished)
    runner.open.set()
    ending.join(60)
    assert str(waiting.error) == "the batcher was closed before this was computed"
    ended.wait(3)
    assert others.result is not None


@pytest.mark.parametrize("end", [lambda lanes, runner: lanes.end(runner), lambda lanes, runner: lanes.close()])
def test_an_end_computes_what_waits_for_a_wake_that_never_comes(opened: Opened, end: Callable[..., None]) -> None:
    """As where an event loop was stopped between queueing a request and waking a lane."""
    lanes, runner, ended = opened(2), FakeRunner(), Ended()
    lanes.submit(request_of(runner, [1], done=ended))
    ended.wait(1)
    until(lambda: lanes._asleep == 2)
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
    assert not lanes._outcomes.open


class CallingRunner(FakeRunner):
    """Calls a function in each batch, as an object does that the garbage collector ends there."""

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__()
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


def test_batches_are_told_to_whoever_watches(opened: Opened) -> None:
    seen: list[Batch] = []
    lanes, runner, ended = opened(), FakeRunner(), Ended()
    lanes.on_batch = seen.append
    lanes.submit(request_of(runner, [1, 2], [1, 2, 3], done=ended))
    lanes.close()
    assert [(batch.texts, batch.tokens) for batch in seen] == [(2, 5)]


def test_a_lane_starts_or_the_request_fails(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a container may have no more threads; the next request finds a lane again."""
    lanes, runner, ended, start = opened(2), FakeRunner(), Ended(), threading.Thread.start
    refused = [RuntimeError("can't start new thread")]

    def starts(thread: threading.Thread) -> None:
        if refused and thread.name == "whiten-lane":
            raise refused[0]
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    with pytest.raises(OverloadedError, match=r"no thread can be started \(can't start new thread\)"):
        lanes.submit(request_of(runner, [1]))
    assert (lanes.stats().queue_requests, lanes.stats().queue_tokens) == (0, 0)
    refused.clear()
    lanes.submit(request_of(runner, [1], done=ended))
    ended.wait(1)
    assert len(lanes._threads) == 2
    refused.append(RuntimeError("can't start new thread"))
    lanes.submit(request_of(runner, [1], done=ended))  # those that run are enough
    ended.wait(2)
    lanes.close()


def test_a_forked_child_gets_words_though_a_lane_held_the_lock(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, runner = opened(), FakeRunner()
    request = request_of(runner, [1])
    with ThreadPoolExecutor(1) as holder:
        holder.submit(lanes._changed.acquire).result()
        monkeypatch.setattr("os.getpid", lambda: -1)
        for call in (lambda: lanes.submit(request), lanes.check_room, lanes.stats, lambda: lanes.begin(runner)):
            with pytest.raises(ClosedError, match="forked; make one in each process"):
                call()
        lanes.cancel(request)
        lanes.end(runner)
        lanes.close()
        monkeypatch.undo()
        holder.submit(lanes._changed.release).result()


def test_each_request_gets_an_error_of_its_own(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, runner, ended, _ = held(opened)

    def deliver(*arguments: object) -> None:
        raise ValueError("no room")

    monkeypatch.setattr(lanes._outcomes, "_deliver", deliver)
    requests = [request_of(runner, [place], done=ended) for place in range(5)]
    for request in requests:
        lanes.submit(request)
    runner.open.set()
    ended.wait(6)
    assert {str(request.error) for request in requests} == {"no room"}
    assert len({id(request.error) for request in requests}) == 5


def test_each_model_has_a_rate_of_its_own(opened: Opened, clock: Clock) -> None:
    """Work of a slow model is refused by its own rate, and of a fast one accepted by its own."""
    lanes, ended = opened(max_wait=0.5), Ended()
    fast, slow = (FakeRunner(False, seconds, Schedule(1, 16), clock) for seconds in (1e-6, 2e-3))
    for runner in (slow, fast, fast, fast, fast):
        lanes.submit(request_of(runner, [1] * 16, done=ended))
    ended.wait(5)
    until(lambda: not lanes.stats().lanes_busy)
    assert lanes.stats_of(slow).rate == pytest.approx(500)
    assert lanes.stats_of(fast).rate == pytest.approx(10**6)
    for runner in (slow, fast):
        runner.open.clear()
    lanes.submit(request_of(slow, [1] * 16, done=ended))
    until(lambda: slow.texts == 2)
    lanes.submit(request_of(slow, *[[1] * 16] * 40, done=ended))
    assert lanes.stats().queue_seconds == pytest.approx(1.28)
    lanes.submit(request_of(fast, *[[1] * 16] * 40, done=ended))
    with pytest.raises(OverloadedError, match="s of work go before it"):
        lanes.submit(request_of(slow, *[[1] * 16] * 40))
    with pytest.raises(TooManyTokensError, match="can be computed in the") as error:
        lanes.submit(request_of(slow, *[[1] * 16] * 2000, deadline=time.monotonic() + 20))
    assert 5000 < error.value.limit <= 10_000
    for runner in (slow, fast):
        runner.open.set()


def test_a_batch_that_stood_still_refuses_requests_of_one_batch_no_longer_than_it_runs(
    opened: Opened, clock: Clock
) -> None:
    """As where the process was stopped meanwhile, or the machine was busy: the next batches measure the rate anew."""
    lanes, runner, ended = opened(), FakeRunner(False, 60.0, Schedule(1, 16), clock), Ended()
    lanes.submit(request_of(runner, [1], done=ended))
    ended.wait(1)
    until(lambda: not lanes.stats().lanes_busy)
    rate, runner.token_seconds = lanes.stats_of(runner).rate, 1e-4

    def submit(texts: int) -> None:
        lanes.submit(request_of(runner, *[[1] * 16] * texts, done=ended, deadline=time.monotonic() + 10))

    runner.open.clear()
    submit(1)
    with pytest.raises(TooManyTokensError, match="can be computed in the"):  # one waits or runs
        submit(1)
    runner.open.set()
    for number in range(2, 4):
        ended.wait(number)
        until(lambda: not lanes.stats().lanes_busy)
        submit(1)
    submit(20)
    ended.wait(5)
    assert lanes.stats_of(runner).rate > 1000 * rate


@pytest.mark.parametrize("lanes_open", [1, 3])
@pytest.mark.parametrize("slower", [2.0, 7.0, 60.0, 600_000.0])
@pytest.mark.parametrize("rows", [[16] * 20, [300], [3, 16, 1] * 20, [1] * 300], ids=["even", "long", "mixed", "short"])
def test_requests_of_more_than_a_batch_measure_a_model_that_stood_still_anew(
    opened: Opened, clock: Clock, rows: list[int], slower: float, lanes_open: int
) -> None:
    """Though each of them is refused, and no smaller one comes; a limit that a refusal tells is right afterwards.

    What measures the rate is no work of anybody: it is not counted.
    """
    lanes, runner, ended = opened(lanes_open), FakeRunner(False, 0.01, Schedule(1, 16), clock), Ended()
    batches: list[Batch] = []
    lanes.on_batch = batches.append
    runner.token_seconds *= slower
    lanes.submit(request_of(runner, [1] * 16, done=ended))
    ended.wait(1)
    runner.token_seconds /= slower
    for _ in range(40):
        until(lambda: lanes.stats().lanes_busy == lanes.stats().queue_tokens == 0)
        request = request_of(runner, *[[1] * length for length in rows], done=ended, deadline=time.monotonic() + 5)
        try:
            lanes.submit(request, wake=False)
        except TooManyTokensError:
            continue
        break
    else:
        raise AssertionError("no request was taken")
    lanes.wake()
    ended.wait(2)
    until(lambda: lanes.stats().lanes_busy == 0)
    with pytest.raises(TooManyTokensError) as refusal:
        lanes.submit(request_of(runner, *[[1] * 16] * 5000, deadline=time.monotonic() + 10))
    assert 300 < refusal.value.limit <= 1100
    lanes.close()
    assert not lanes._outcomes.open
    assert_counted(lanes, batches, [16, *rows])


def assert_counted(lanes: Scheduler, batches: list[Batch], lengths: list[int]) -> None:
    """Check that these texts are counted, and no others."""
    counted = lanes.stats().counted
    assert (counted.texts, counted.tokens) == (len(lengths), sum(lengths))
    assert (sum(batch.texts for batch in batches), sum(batch.tokens for batch in batches)) == (
        len(lengths),
        sum(lengths),
    )
    assert (len(batches), sum(batch.padding for batch in batches)) == (counted.batches, counted.padding)


def test_texts_that_share_a_batch_with_those_of_a_refused_request_are_counted_without_them(
    opened: Opened, clock: Clock
) -> None:
    lanes, ended, batches = opened(), Ended(), list[Batch]()
    slow, other = FakeRunner(False, 60.0, Schedule(1, 64), clock), FakeRunner(True, 0.01, Schedule(1, 64), clock)
    lanes.submit(request_of(slow, [1] * 8, done=ended))
    ended.wait(1)
    until(lambda: not lanes.stats().lanes_busy)
    lanes.submit(request_of(other, [1], done=ended))
    assert other.begun.acquire(timeout=30)
    lanes.on_batch = batches.append
    with pytest.raises(TooManyTokensError):
        lanes.submit(request_of(slow, *[[1, 1]] * 40, [1] * 32, deadline=time.monotonic() + 5))
    lanes.submit(request_of(slow, [1, 1], [1, 1], done=ended))
    other.open.set()
    ended.wait(3)
    until(lambda: not lanes.stats().lanes_busy and not lanes.stats().queue_tokens)
    assert [len(ids) for ids, _ in slow.batches] == [1, 4]
    assert [(batch.texts, batch.tokens, batch.padding) for batch in batches] == [(2, 4, 0)]
    assert lanes.stats().counted.texts == 4


def test_the_oldest_batch_that_runs_is_seen(opened: Opened) -> None:
    lanes, runner, ended, _ = held(opened)
    time.sleep(0.05)
    assert lanes.stats().oldest_seconds >= 0.05
    runner.open.set()
    ended.wait(1)
    until(lambda: lanes.stats().oldest_seconds == 0)
