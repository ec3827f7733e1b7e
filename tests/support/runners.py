"""Runners without a network, which tests of the batcher hold, slow down, or let fail."""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import WhitenError
from whiten_runtime.inference.engine import TokenizedTexts, TokenRunner
from whiten_serving.scheduler import Request

POISON = 666
"""Token on which a batch fails."""

LOST = 667
"""Token of a text whose vector is not finite."""


class FakeRunner(TokenRunner):
    """Gives each text the vector (sum of its ids, number of its ids, tokens left out of the pooling).

    Args:
        held: whether batches wait until `open` is set.
        token_seconds: time that a padded token takes.

    Attributes:
        open: event that lets batches run.
        begun: semaphore that is released when a batch begins.
        batches: token ids of the batches that began, each with whether it ran alone.
    """

    def __init__(self, held: bool = False, token_seconds: float = 0.0) -> None:
        self.open = threading.Event()
        self.begun = threading.Semaphore(0)
        self.batches: list[tuple[list[list[int]], bool]] = []
        self._token_seconds = token_seconds
        if not held:
            self.open.set()

    def run(self, ids: Sequence[Sequence[int]], prompt_tokens: int = 0, *, alone: bool = False) -> NDArray[np.float32]:
        self.batches.append(([list(row) for row in ids], alone))
        self.begun.release()
        assert self.open.wait(60)
        time.sleep(self._token_seconds * len(ids) * max(map(len, ids)))
        if any(POISON in row for row in ids):
            raise WhitenError("onnxruntime failed: poison")
        return vectors_of(ids, prompt_tokens)

    @property
    def texts(self) -> int:
        """Return the number of texts that were computed."""
        return sum(len(ids) for ids, _ in self.batches)


def vectors_of(ids: Sequence[Sequence[int]], prompt_tokens: int = 0) -> NDArray[np.float32]:
    rows = [(np.nan if LOST in row else sum(row), len(row), prompt_tokens) for row in ids]
    return np.array(rows, np.float32).reshape(-1, 3)


class Ended:
    """Collects the requests that have their outcomes.

    Attributes:
        requests: those requests, in that order.
    """

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
    runner: TokenRunner,
    *ids: Sequence[int],
    prompt_tokens: int = 0,
    deadline: float = np.inf,
    done: Ended | None = None,
) -> Request:
    texts = TokenizedTexts([list(row) for row in ids], prompt_tokens)
    return Request(runner, texts, lambda vectors: vectors, done or Ended(), deadline)


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)
