"""Runners without a network, which tests of the batcher hold, slow down, or let fail."""

import threading
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import NoVectorError, RunError
from whiten_runtime.inference.batching import Schedule
from whiten_runtime.inference.engine import Engine

POISON = 666
"""Token on which a batch fails."""

LOST = 667
"""Token of a text whose vector is not finite."""


class Clock:
    """Stands for the module `time` in the scheduler: batches take the time that their runner says, and none passes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.monotonic = time.monotonic

    def perf_counter(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class FakeRunner(Engine):
    """Gives each text the vector (sum of its ids, number of its ids, tokens left out of the pooling)."""

    def __init__(
        self,
        held: bool = False,
        token_seconds: float = 0.0,
        schedule: Schedule | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.schedule = schedule or Schedule(64, 256)  # more workers than any test has lanes
        self.open = threading.Event()  # lets batches run; set at first unless they are held
        self.begun = threading.Semaphore(0)  # released when a batch begins
        self.batches: list[tuple[list[list[int]], bool]] = []  # ids of those that began, and whether each ran alone
        self.token_seconds = token_seconds  # time that a padded token takes
        self._sleep = clock.sleep if clock else time.sleep
        if not held:
            self.open.set()

    def run_batch(
        self,
        ids: Sequence[Sequence[int]],
        prompt_tokens: int = 0,
        outputs: Sequence[str] = (),
        side_by_side: bool = False,
    ) -> NDArray[np.float32]:
        self.batches.append(([list(row) for row in ids], not side_by_side))
        self.begun.release()
        assert self.open.wait(60)
        self._sleep(self.token_seconds * len(ids) * max(map(len, ids)))
        if any(POISON in row for row in ids):
            error = RunError("onnxruntime failed: poison")
            raise error if len(ids) > 1 else NoVectorError({0: f"has no vector ({error})"})
        return vectors_of(ids, prompt_tokens)

    @property
    def texts(self) -> int:
        """Return the number of texts that were computed."""
        return sum(len(ids) for ids, _ in self.batches)


def vectors_of(ids: Sequence[Sequence[int]], prompt_tokens: int = 0) -> NDArray[np.float32]:
    rows = [(np.nan if LOST in row else sum(row), len(row), prompt_tokens) for row in ids]
    return np.array(rows, np.float32).reshape(-1, 3)
