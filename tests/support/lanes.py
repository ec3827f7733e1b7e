"""Schedulers whose lanes are held by a runner, and what becomes of their requests."""

import threading
from collections.abc import Callable, Sequence

import numpy as np

from support.runners import FakeRunner
from support.server import until
from whiten_runtime.inference.batching import Schedule
from whiten_runtime.inference.engine import Engine, TokenizedTexts
from whiten_serving.requests import Request
from whiten_serving.scheduler import Scheduler

Opened = Callable[..., Scheduler]


def rest(lanes: Scheduler) -> None:
    """Start all lanes, and wait until each sleeps: none takes what comes before it is woken."""
    lanes.submit(request_of(FakeRunner(), [1]))
    until(lambda: len(lanes._changed._waiters) == lanes.lanes)  # type: ignore[attr-defined]


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


def request_of(
    runner: Engine,
    *ids: Sequence[int],
    prompt_tokens: int = 0,
    deadline: float = np.inf,
    done: Ended | None = None,
) -> Request:
    texts = TokenizedTexts([list(row) for row in ids], prompt_tokens)
    return Request(runner, texts, lambda vectors: vectors, done or Ended(), deadline)


def held(opened: Opened, count: int = 1, budget: int = 256) -> tuple[Scheduler, FakeRunner, Ended, list[Request]]:
    """Return lanes that are all busy with a request each, which their runner holds; its batches have a budget."""
    lanes, runner, ended = opened(count), FakeRunner(held=True, schedule=Schedule(64, budget)), Ended()
    first = [request_of(runner, [1], done=ended) for _ in range(count)]
    for request in first:
        lanes.submit(request)
        assert runner.begun.acquire(timeout=30)
    return lanes, runner, ended, first
