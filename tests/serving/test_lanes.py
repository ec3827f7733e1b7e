"""Models of different numbers of workers on one scheduler: which batches run at once, and on how many threads."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.lanes import Opened, request_of
from support.runners import Clock, FakeRunner
from support.server import until
from whiten import Encoder
from whiten_runtime.inference.batching import Schedule
from whiten_runtime.inference.engine import Engine
from whiten_serving.http.models import make_scheduler
from whiten_serving.requests import Request
from whiten_serving.scheduler import Scheduler
from whiten_serving.settings import Settings

Held = Callable[..., FakeRunner]


@pytest.fixture
def runner_of(opened: Opened) -> Iterator[Held]:
    """Return a function that makes a runner that holds its batches, at most until the test ends."""
    with ExitStack() as stack:

        def make(workers: int, budget: int = 16, **more: Any) -> FakeRunner:
            runner = FakeRunner(held=True, schedule=Schedule(workers, budget, **more))
            stack.callback(runner.open.set)
            return runner

        yield make


def submit(scheduler: Scheduler, runner: Engine, *lengths: int) -> Request:
    request = request_of(runner, *([1] * length for length in lengths))
    scheduler.submit(request)
    return request


def running(*runners: FakeRunner) -> list[int]:
    return [len(runner.batches) for runner in runners]


@pytest.mark.parametrize(("split", "sizes"), [(True, {5}), (False, {10})])
def test_a_call_is_divided_only_where_the_model_divides_it(
    opened: Opened, runner_of: Held, split: bool, sizes: set[int]
) -> None:
    runner = runner_of(2, 10**6, split=split)
    submit(opened(2), runner, *[20] * 10)
    until(lambda: runner.texts == 10)  # before any of them ends
    runner.open.set()
    assert {len(ids) for ids, _ in runner.batches} == sizes


@pytest.mark.parametrize(
    ("lanes", "workers", "submitted", "alone"),
    [
        (4, 4, 4, [True, True, False, False]),
        (2, 16, 2, [True, True]),
        (1, 4, 1, [True]),
        (2, 2, 2, [True, False]),
        (4, 1, 1, [False]),  # its only session
    ],
)
def test_a_batch_has_all_threads_if_most_would_be_idle(
    opened: Opened, runner_of: Held, lanes: int, workers: int, submitted: int, alone: list[bool]
) -> None:
    runner, scheduler = runner_of(workers), opened(lanes)
    for count in range(1, submitted + 1):
        submit(scheduler, runner, 3)
        until(lambda: running(runner) == [count])  # noqa: B023
    assert [wide for _, wide in runner.batches] == alone


def test_the_work_of_a_model_of_one_worker_is_measured_as_that_of_one_lane(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no less time in a scheduler of four lanes."""
    seconds = {}
    for lanes in (1, 4):
        clock = Clock()
        monkeypatch.setattr("whiten_serving.scheduler.time", clock)
        runner, scheduler = FakeRunner(False, 1e-3, Schedule(1, 16), clock), opened(lanes)
        for _ in range(10):
            submit(scheduler, runner, 16)
        until(lambda: runner.texts == 10 and not scheduler.stats().lanes_busy)  # noqa: B023
        runner.open.clear()
        submit(scheduler, runner, 1)
        until(lambda: runner.texts == 11)  # noqa: B023
        submit(scheduler, runner, *[16] * 100)
        seconds[lanes] = scheduler.stats().queue_seconds
        runner.open.set()
    assert seconds == {1: pytest.approx(1.6), 4: pytest.approx(1.6)}


def test_models_share_as_many_lanes_as_the_one_with_the_most_workers_has(golden: Path) -> None:
    with Encoder(golden / "bundle-v1", threads=1) as single, Encoder(golden / "bundle-v1", threads=3) as several:
        for encoders in ([single, several], [several, single]):
            assert make_scheduler(encoders, Settings()).lanes == 3
