"""Describe requests, batches of their texts, and what a scheduler counts. No threads: callers hold a lock."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import UsageError, WhitenError
from whiten_runtime.inference.engine import Engine, TokenizedTexts

RUN_SHARE = 1 / 24
"""Cost of a run besides that of its padded tokens, as a share of the tokens of a full batch: 11 tokens of 256, measured
with all-MiniLM-L6-v2 in int8."""

_MEMORY = 0.9
"""Share of the earlier measurements that a rate keeps with each batch: about the last ten count."""


class OverloadedError(WhitenError):
    """Raised when a request is refused because too much work waits already.

    Attributes:
        retry_after: seconds until the work that waits is done, at the rate measured so far.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.retry_after)


class TooManyTokensError(WhitenError, ValueError):
    """Raised when a request has more tokens than may wait of one request.

    Attributes:
        limit: number of tokens that a request may have.
    """

    def __init__(self, message: str, limit: int) -> None:
        super().__init__(message)
        self.limit = limit

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.limit)


class DeadlineExceededError(WhitenError, TimeoutError):
    """Raised when a request was not computed by its deadline."""


Finish = Callable[[NDArray[np.float32]], NDArray[Any]]
"""Function that makes a caller's vectors of those of the graph: cut, normalised, quantised."""


@dataclass(eq=False, slots=True)
class Request:
    """The texts of one call, and the vectors computed of them so far. The scheduler's lock guards it."""

    runner: Engine
    texts: TokenizedTexts  # different ones
    finish: Finish  # applied to all vectors, float32 [n, k], when the last one is computed
    done: "Callable[[Request], object]"  # called once, in a lane, when there is a result or an error
    deadline: float = math.inf  # time of time.monotonic, as the three below
    client: str = ""  # whose it is: clients take turns, and the requests of each
    places: list[int] | None = None  # index of each text of the call among those; None if they are the same
    submitted: float = 0.0
    started: float = 0.0  # when a lane took its first text
    ended: float = 0.0  # when its last text was computed
    lengths: list[int] = field(init=False)  # tokens of each text; an empty one counts as one
    tokens: int = field(init=False)
    queued_tokens: int = field(init=False)  # tokens that no lane has taken
    waiting: list[int] = field(init=False)  # indices of the texts that no lane has taken
    left: int = field(init=False)  # texts that are not computed
    finished: bool = False  # it has its outcome, or its caller has gone
    result: NDArray[Any] | None = None
    error: Exception | None = None
    vectors: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        self.lengths = [len(row) or 1 for row in self.texts.ids]
        self.tokens = self.queued_tokens = sum(self.lengths)
        self.left = len(self.lengths)
        self.waiting = list(range(self.left))

    @property
    def asked_tokens(self) -> int:
        """Return the tokens of all texts of the call, equal ones too."""
        return self.tokens if self.places is None else sum(self.lengths[place] for place in self.places)

    def store(self, indices: list[int], vectors: NDArray[np.float32]) -> bool:
        """Take the vectors of some of its texts, and return whether all are there."""
        if len(indices) == len(self.lengths):
            self.vectors = vectors
        else:
            if self.vectors is None:
                self.vectors = np.empty((len(self.lengths), vectors.shape[1]), np.float32)
            self.vectors[indices] = vectors
        self.left -= len(indices)
        return self.left == 0

    def complete(self) -> None:
        """Finish the vectors if all are there, or keep the error that finishing them raises."""
        self.ended = time.monotonic()
        try:
            if self.error is None and self.vectors is not None:
                vectors = self.finish(self.vectors)
                self.result = vectors if self.places is None else vectors[self.places]
        except Exception as error:
            self.error = error


Item = tuple[Request, int]
"""One text: its request, and its index there."""


@dataclass(frozen=True)
class Batch:
    """Texts that are computed together: those of one graph whose prompts are equally long."""

    parts: dict[Request, list[int]]  # indices of the texts of each request; the rows of the batch are in this order
    texts: int
    tokens: int
    padding: int

    @classmethod
    def of(cls, items: Iterable[Item]) -> "Batch":
        """Return a batch of these texts."""
        parts: dict[Request, list[int]] = {}
        for request, index in items:
            parts.setdefault(request, []).append(index)
        lengths = [request.lengths[index] for request, indices in parts.items() for index in indices]
        tokens = sum(lengths)
        return cls(parts, len(lengths), tokens, len(lengths) * max(lengths, default=0) - tokens)

    @property
    def runner(self) -> Engine:
        """Return what computes the batch."""
        return next(iter(self.parts)).runner

    @property
    def cost(self) -> float:
        """Return what the batch costs, in tokens: those of the texts, padding, and the run itself."""
        return self.tokens + self.padding + self.runner.schedule.budget * RUN_SHARE

    def run(self, alone: bool) -> NDArray[np.float32]:
        """Compute the vectors of the texts, float32 [n, k], in their order."""
        ids = [request.texts.ids[index] for request, indices in self.parts.items() for index in indices]
        prompt_tokens = next(iter(self.parts)).texts.prompt_tokens
        return self.runner.run_batch(ids, prompt_tokens, side_by_side=not alone)


@dataclass
class BatcherCounters:
    """Counts since the lanes were made.

    Attributes:
        texts: texts that were computed.
        tokens: tokens of these texts, without padding.
        padding: tokens of padding that were computed.
        batches: batches that were computed.
        rejected: requests refused because too much waited.
        cancelled: requests cancelled before they were computed.
        expired: requests whose deadline passed before they were computed.
    """

    texts: int = 0
    tokens: int = 0
    padding: int = 0
    batches: int = 0
    rejected: int = 0
    cancelled: int = 0
    expired: int = 0


@dataclass(frozen=True)
class BatcherStats:
    """Counts what waits and runs at one moment, and what was done so far.

    Attributes:
        lanes: batches that can run at once.
        lanes_busy: batches that run.
        queue_requests: requests of which texts wait.
        queue_tokens: tokens that wait.
        queue_seconds: time that the waiting work takes, each model's at the rate of its last batches; 0 before them.
        oldest_seconds: time for which the oldest of the running batches has run; 0 if none runs.
        counted: counts since the lanes were made.
    """

    lanes: int
    lanes_busy: int
    queue_requests: int
    queue_tokens: int
    queue_seconds: float
    oldest_seconds: float = 0.0
    counted: BatcherCounters = field(default_factory=BatcherCounters)


@dataclass(frozen=True)
class ModelStats:
    """Counts what waits of one model at one moment."""

    requests: int  # of which texts wait
    tokens: int  # that wait
    seconds: float  # time that they take; 0 before the first batch


@dataclass
class Rate:
    """Measures the rate of one lane by its last batches."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        """Add a batch."""
        self.tokens = self.tokens * _MEMORY + tokens
        self.seconds = self.seconds * _MEMORY + seconds

    def seconds_for(self, tokens: float) -> float:
        """Return the time that tokens take; 0 before the first batch."""
        return tokens * self.seconds / self.tokens if self.tokens else 0.0


def is_number(value: object) -> bool:
    """Return whether a value is a real number, which NaN and bool are not."""
    return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)


def moment_in(name: str, seconds: float | None) -> float:
    """Return the time of `time.monotonic` in so many seconds; infinite for None."""
    if seconds is None:
        return math.inf
    if not is_number(seconds):
        raise UsageError(f"{name} is {seconds!r}; wanted seconds from now, or None")
    return time.monotonic() + float(seconds)
