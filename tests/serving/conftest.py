"""Schedulers that are closed when a test ends, and the clock by which they measure batches."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from support.lanes import Opened
from support.runners import Clock
from whiten_serving.scheduler import Scheduler


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which batches are measured, whatever the machine does meanwhile."""
    clock = Clock()
    monkeypatch.setattr("whiten_serving.scheduler.time", clock)
    return clock


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Return a function that makes lanes, which are closed when the test ends."""
    with ExitStack() as stack:

        def make(count: int = 1, **options: Any) -> Scheduler:
            lanes = Scheduler(count, **options)
            stack.callback(lanes.close, wait=False)
            return lanes

        yield make
