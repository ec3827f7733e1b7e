"""Test lanes that run short of memory anywhere: every request gets an outcome, and the lanes go on."""

from typing import Any

import numpy as np
import pytest

from support.runners import Ended, FakeRunner, request_of, until, vectors_of
from whiten_serving.batching import lanes as lanes_module
from whiten_serving.batching import queue as queue_module
from whiten_serving.batching.lanes import Lanes
from whiten_serving.batching.request import Request


def short(*_: object, **__: object) -> Any:
    raise MemoryError("no memory")


def computed_now(lanes: Lanes, runner: FakeRunner) -> None:
    """Check that a new request is computed."""
    ended = Ended()
    request = request_of(runner, [1, 2], deliver=ended)
    lanes.submit(request)
    ended.wait(1)
    np.testing.assert_array_equal(request.result, vectors_of(request.texts.ids))


@pytest.mark.parametrize("count", [1, 2])
def test_planning_fails(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, runner, ended = Lanes(count, 16), FakeRunner(), Ended()
    with monkeypatch.context() as patched:
        patched.setattr(queue_module, "grouped", short)
        requests = [request_of(runner, [1], [2, 3], deliver=ended) for _ in range(3)]
        for request in requests:
            lanes.submit(request)
        ended.wait(3)
    assert all(isinstance(request.error, MemoryError) for request in requests)
    computed_now(lanes, runner)
    until(lambda: lanes.stats().lanes_busy == 0)
    assert (lanes.stats().queue_tokens, lanes.stats().queue_requests) == (0, 0)
    lanes.close()


def test_planning_fails_while_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, runner, ended = Lanes(2, 16), FakeRunner(held=True), Ended()
    running = request_of(runner, [7], deliver=ended)
    lanes.submit(running)
    assert runner.begun.acquire(timeout=30)
    late = Ended()
    with monkeypatch.context() as patched:
        patched.setattr(queue_module, "grouped", short)
        failing = request_of(runner, [1], deliver=late)
        lanes.submit(failing)
        late.wait(1)
    runner.open.set()
    ended.wait(1)
    np.testing.assert_array_equal(running.result, vectors_of([[7]]))
    assert isinstance(failing.error, MemoryError)
    lanes.close()


def test_keeping_the_vectors_of_one_request_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, runner, ended = Lanes(1, 16), FakeRunner(held=True), Ended()
    first = request_of(runner, [1], deliver=ended)
    lanes.submit(first)
    assert runner.begun.acquire(timeout=30)
    others = [request_of(runner, [number], deliver=ended) for number in (2, 3, 4)]
    for request in others:
        lanes.submit(request)
    keep = Request.keep
    monkeypatch.setattr(
        Request, "keep", lambda request, *given: short() if request is others[1] else keep(request, *given)
    )
    runner.open.set()
    ended.wait(4)
    assert isinstance(others[1].error, MemoryError)
    for request in (first, others[0], others[2]):
        np.testing.assert_array_equal(request.result, vectors_of(request.texts.ids))
    computed_now(lanes, runner)
    lanes.close()


def test_what_nobody_thought_of_ends_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, runner, ended = Lanes(1, 16), FakeRunner(), Ended()
    with monkeypatch.context() as patched:
        patched.setattr(lanes_module.BatchRun, "of", short)
        request = request_of(runner, [1], deliver=ended)
        lanes.submit(request)
        ended.wait(1)
        until(lambda: lanes.stats().lanes_busy == 0)
    computed_now(lanes, runner)
    lanes.close()
