"""Test lanes with a runner that is held, slow or failing: what is computed, and what callers get."""

import logging
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.lanes import Ended, Opened, held, request_of
from support.runners import POISON, FakeRunner, vectors_of
from support.server import until
from whiten_runtime.errors import RunError, UsageError
from whiten_runtime.inference.engine import OUT_OF_MEMORY, _run_options
from whiten_serving import requests
from whiten_serving.requests import OverloadedError, Queue, Request
from whiten_serving.scheduler import Scheduler


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


def test_a_request_that_failed_is_not_computed_further(opened: Opened) -> None:
    lanes, runner, ended = opened(), FakeRunner(), Ended()
    lanes.submit(request_of(runner, *[[POISON]] * 20, done=ended))
    ended.wait(1)
    lanes.close()
    assert runner.texts == 20 + 1


def test_the_oldest_request_fails_where_no_batch_can_be_formed(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lane ends of it, and nobody waits for ever: requests before and after it are computed."""
    lanes, runner, ended, _ = held(opened, budget=20)
    companions = requests.companions

    def short(lengths: Sequence[int], *arguments: Any) -> object:
        if lengths[0] == 7:
            raise MemoryError
        return companions(lengths, *arguments)

    monkeypatch.setattr(requests, "companions", short)
    asked = [request_of(runner, [1] * length, [2] * length, done=ended) for length in (6, 7, 7, 8)]
    for request in asked:
        lanes.submit(request)
    runner.open.set()
    ended.wait(5)
    assert [type(request.error) for request in asked] == [type(None), MemoryError, MemoryError, type(None)]
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


def test_a_lane_starts_or_the_request_fails(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a container may have no more threads; the next request finds a lane again."""
    lanes, runner, ended, start = opened(2), FakeRunner(), Ended(), threading.Thread.start
    refused = [RuntimeError("can't start new thread")]

    def starts(thread: threading.Thread) -> None:
        if refused and thread.name == "whiten-lane":
            raise refused[0]
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    with pytest.raises(OverloadedError):
        lanes.submit(request_of(runner, [1]))
    assert (lanes.stats().queue_requests, lanes.stats().queue_tokens) == (0, 0)
    refused.clear()
    lanes.submit(request_of(runner, [1], done=ended))
    ended.wait(1)
    refused.append(RuntimeError("can't start new thread"))
    lanes.submit(request_of(runner, [1], done=ended))  # those that run are enough
    ended.wait(2)
    lanes.close()


class TerminableRunner(FakeRunner):
    """Runs each batch until it is told to go on, or until its run is to end early, as onnxruntime does."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.ended_early = threading.Semaphore(0), 0

    def run_batch(self, *batch: Any, **options: Any) -> NDArray[np.float32]:
        run = _run_options()
        vectors = super().run_batch(*batch, **options)
        until(lambda: run.terminate or self.go.acquire(blocking=False))
        self.ended_early += run.terminate
        if run.terminate:
            raise RunError("terminated")
        return vectors


@pytest.mark.parametrize("leaving", [0, 1, 2, 3])
def test_a_batch_ends_early_only_if_nobody_waits_for_it(opened: Opened, leaving: int) -> None:
    lanes, runner, ended = opened(), TerminableRunner(), Ended()
    first, *requests = [request_of(runner, [place], [place], done=ended) for place in range(4)]
    lanes.submit(first)
    until(lambda: len(runner.batches) == 1)
    for request in requests:
        lanes.submit(request)
    runner.go.release()
    until(lambda: len(runner.batches) == 2)
    for request in requests[:leaving]:
        lanes.cancel(request)
    if leaving < 3:
        assert (runner.ended_early, lanes.stuck_seconds()) == (0, 0)
        runner.go.release()
    until(lambda: not lanes.stats().lanes_busy)
    assert runner.ended_early == (leaving == 3)
    assert [request.result is not None for request in requests] == [False] * leaving + [True] * (3 - leaving)
    single = request_of(runner, [1])
    lanes.submit(single)
    until(lambda: len(runner.batches) == 3)
    lanes.cancel(single)
    until(lambda: not lanes.stats().lanes_busy)
    assert (lanes.failing_seconds(runner), lanes.stuck_seconds()) == (0, 0)
    runner.go.release()
    lanes.submit(request_of(runner, [1], done=ended))
    ended.wait(1 + 3 - leaving + 1)
    assert len(runner.batches) == 4  # no text of a batch that ended early is tried


def test_a_batch_that_does_not_end_though_nobody_waits_is_told(opened: Opened) -> None:
    lanes, runner, _, first = held(opened)
    assert lanes.stuck_seconds() == 0
    lanes.cancel(first[0])
    until(lambda: 0 < lanes.stuck_seconds() < lanes.stats().oldest_seconds)
    runner.open.set()
    until(lambda: not lanes.stats().lanes_busy)
    assert lanes.stuck_seconds() == lanes.stats().oldest_seconds == 0


class BrokenRunner(FakeRunner):
    """Fails on every batch while it has an error."""

    error: Exception | None = None

    def run_batch(self, *batch: Any, **options: Any) -> NDArray[np.float32]:
        vectors = super().run_batch(*batch, **options)
        if self.error is not None:
            raise self.error
        return vectors


def outcomes(lanes: Scheduler, runner: FakeRunner, *ids: Sequence[int]) -> tuple[Exception | None, int]:
    """Return the error of a request, and the number of batches that it took."""
    ended, before = Ended(), len(runner.batches)
    lanes.submit(request_of(runner, *ids, done=ended))
    ended.wait(1)
    until(lambda: not lanes.stats().lanes_busy)
    return ended.requests[0].error, len(runner.batches) - before


@pytest.mark.parametrize("texts", [1, 2, 100])
def test_a_model_that_computes_no_text_at_all_is_told_until_it_does(opened: Opened, texts: int) -> None:
    lanes, runner = opened(), BrokenRunner()
    assert lanes.failing_seconds(runner) == 0
    runner.error = RunError("CUDA failure 700")
    error, batches = outcomes(lanes, runner, *[[1]] * texts)
    assert (str(error), batches) == ("CUDA failure 700", min(texts, 2))  # not one by one
    until(lambda: lanes.failing_seconds(runner) > 0)
    since = lanes.failing_seconds(runner)
    error, batches = outcomes(lanes, runner, *[[1]] * texts)
    assert (str(error), batches) == ("CUDA failure 700", 1)
    assert lanes.failing_seconds(runner) >= since  # since the first one
    assert lanes.failing_seconds(FakeRunner()) == 0
    runner.error = None
    assert outcomes(lanes, runner, *[[1]] * texts) == (None, 1)
    assert lanes.failing_seconds(runner) == 0


@pytest.mark.parametrize("texts", [1, 20])
@pytest.mark.parametrize("words", ["poison", *OUT_OF_MEMORY])
def test_a_text_at_fault_or_a_lack_of_memory_is_no_fault_of_the_model(opened: Opened, texts: int, words: str) -> None:
    """Those that share its batch are tried one by one; that the text is at fault proves that the model computes."""
    lanes, runner = opened(), BrokenRunner()
    runner.error = RunError("CUDA failure 700")
    outcomes(lanes, runner, [1])
    assert lanes.failing_seconds(runner) > 0
    runner.error = None
    if words == "poison":
        outcomes(lanes, runner, [POISON])
    else:
        outcomes(lanes, runner, [1])
        runner.error = RunError(f"onnxruntime failed: {words}")
        assert outcomes(lanes, runner, *[[1]] * texts)[1] == 1 + (texts > 1)
    assert lanes.failing_seconds(runner) == 0


def test_a_lane_goes_on_where_taking_fails_twice(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, runner, ended = opened(), FakeRunner(), Ended()
    failures = [MemoryError()] * 4
    take, first = Queue.take, Queue.first

    def short_at_first(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if failures:
                raise failures.pop()
            return function(*arguments)

        return call

    monkeypatch.setattr(Queue, "take", short_at_first(take))
    monkeypatch.setattr(Queue, "first", short_at_first(first))
    request = request_of(runner, [1, 2], done=ended)
    lanes.submit(request)
    ended.wait(1)
    assert request.result is not None


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


def test_finishing_that_raises_fails_its_request(opened: Opened) -> None:
    lanes, runner, ended = opened(), FakeRunner(), Ended()
    request = request_of(runner, [1], done=ended)

    def fail(vectors: np.ndarray) -> np.ndarray:
        raise UsageError("cannot be finished")

    request.finish = fail
    lanes.submit(request)
    ended.wait(1)
    assert isinstance(request.error, UsageError)
