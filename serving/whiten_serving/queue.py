"""Hold requests, batches and counts, and form batches of what waits. No threads: callers hold a lock."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import UsageError, WhitenError
from whiten_runtime.inference.batching import token_budget, workers_for
from whiten_runtime.inference.engine import TokenizedTexts, TokenRunner

MAX_QUEUE_TOKENS = 131_072
"""Default for the number of tokens that may wait: some seconds of a small model on two cores."""

WINDOW = 256
"""Number of texts, the oldest ones, from which a batch is formed: about ten batches of short texts."""

RUN_SHARE = 1 / 24
"""Cost of a run besides that of its padded tokens, as a share of the tokens of a full batch: 11 tokens of 256, measured
with all-MiniLM-L6-v2 in int8."""

_SHORTEST = np.array([[0.0], [0.5], [0.7], [0.85]])
"""Lengths of the shortest text of a batch, relative to the longest, of which the best one is taken."""

_MEMORY = 0.95
"""Share of the earlier measurements that the rate keeps with each batch: about the last twenty count. With fewer, too
much is accepted whenever some batches happen to be fast."""

Finish = Callable[[NDArray[np.float32]], NDArray[Any]]
"""Function that makes a caller's vectors of those of the graph: cut, normalised, quantised."""


@dataclass(eq=False, slots=True)
class Request:
    """Holds the texts of one call, and the vectors computed of them so far. The scheduler's lock guards it."""

    runner: TokenRunner
    texts: TokenizedTexts
    finish: Finish  # applied to all vectors, float32 [n, k], when the last one is computed
    done: "Callable[[Request], object]"  # called once, in a lane, when there is a result or an error
    deadline: float = math.inf  # time of time.monotonic, as the three below
    submitted: float = 0.0
    started: float = 0.0  # when a lane took its first text
    ended: float = 0.0  # when its last text was computed
    lengths: list[int] = field(init=False)  # tokens of each text; an empty one counts as one
    tokens: int = field(init=False)
    waiting: int = field(init=False)  # tokens that no lane has taken
    left: int = field(init=False)  # texts that are not computed
    windowed: int = 0  # texts that are or were in the window of the queue
    over: bool = False  # it has its outcome, or its caller has gone
    result: NDArray[Any] | None = None
    error: Exception | None = None
    vectors: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        self.lengths = [len(row) or 1 for row in self.texts.ids]
        self.tokens = self.waiting = sum(self.lengths)
        self.left = len(self.lengths)

    def keep(self, indices: list[int], vectors: NDArray[np.float32]) -> bool:
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
                self.result = self.finish(self.vectors)
        except Exception as error:
            self.error = error


Item = tuple[Request, int]
"""One text: its request, and its index there."""


@dataclass(frozen=True)
class Batch:
    """Holds texts that are computed together: those of one graph whose prompts are equally long."""

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
    def runner(self) -> TokenRunner:
        """Return what computes the batch."""
        return next(iter(self.parts)).runner

    def run(self, alone: bool) -> NDArray[np.float32]:
        """Compute the vectors of the texts, float32 [n, k], in their order."""
        ids = [request.texts.ids[index] for request, indices in self.parts.items() for index in indices]
        prompt_tokens = next(iter(self.parts)).texts.prompt_tokens
        vectors = self.runner.run(ids, prompt_tokens, alone=alone)
        if len(vectors) != len(ids):
            raise WhitenError(f"the graph gave {len(vectors)} vectors for {len(ids)} texts; export it again")
        return vectors


@dataclass(frozen=True)
class BatchRun:
    """Describes a batch that was computed, for whoever watches."""

    runner: TokenRunner
    texts: int
    tokens: int  # without padding
    padding: int
    seconds: float
    vectors: NDArray[np.float32]


@dataclass
class Counters:
    """Counts since the scheduler was made."""

    texts: int = 0  # that were computed
    tokens: int = 0  # of these texts, without padding
    padding: int = 0  # tokens of padding that were computed
    batches: int = 0
    failed: int = 0  # batches that onnxruntime failed on, whose texts were then computed one by one
    rejected: int = 0  # requests refused because too much waited
    departed: int = 0  # requests cancelled before they were computed
    late: int = 0  # requests whose deadline passed before they were computed

    def add(self, batch: Batch) -> None:
        """Count a batch that was computed."""
        self.texts += batch.texts
        self.tokens += batch.tokens
        self.padding += batch.padding
        self.batches += 1


@dataclass(frozen=True)
class Stats:
    """Describes a scheduler at one moment."""

    lanes: int  # batches that can run at once
    lanes_busy: int
    queue_requests: int  # requests of which texts wait
    queue_tokens: int
    queue_seconds: float  # time that the waiting work takes at the rate of the last batches; 0 before the first one
    tokens_per_second: float  # that rate, of all lanes
    counted: Counters = field(default_factory=Counters)


@dataclass
class Rate:
    """Measures the rate of one lane by its last batches."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Add a batch."""
        self.tokens = self.tokens * _MEMORY + tokens
        self.seconds = self.seconds * _MEMORY + seconds

    @property
    def tokens_per_second(self) -> float:
        """Return the rate; 0 before the first batch."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def seconds_for(self, tokens: int) -> float:
        """Return the time that tokens take; 0 before the first batch."""
        return tokens * self.seconds / self.tokens if self.tokens else 0.0


class Queue:
    """Holds the requests that wait, first in first out, and forms batches of their texts.

    A batch is formed when a lane is free: it has the oldest text, and those of like length among the oldest ones, the
    window. So no text is overtaken by more than the texts of the window before it.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.requests = 0
        self._window: list[Item] = []
        self._rest: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """Queue a request behind all others."""
        self._rest.append(request)
        self.tokens += request.waiting
        self.requests += 1

    def drop(self, request: Request) -> None:
        """Forget the texts of a request that wait, if any do; the caller marks it as over."""
        if request.waiting:
            self.tokens -= request.waiting
            self.requests -= 1
            request.waiting = 0

    def late(self, now: float) -> list[Request]:
        """Return requests of the window whose deadline has passed."""
        self._fill()
        return list({request: None for request, _ in self._window if now >= request.deadline})

    def take(self, idle: int, budget: int) -> Batch | None:
        """Take the next batch; None if no text waits."""
        self._fill()
        if not self._window:
            return None
        oldest, _ = self._window[0]
        kind = oldest.runner, oldest.texts.prompt_tokens
        places = [
            place
            for place, (request, _) in enumerate(self._window)
            if (request.runner, request.texts.prompt_tokens) == kind
        ]
        lengths = [request.lengths[index] for request, index in (self._window[place] for place in places)]
        workers = workers_for(lengths, idle)
        most = budget if workers == 1 else token_budget(lengths, workers, budget)
        chosen = {places[number] for number in companions(lengths, most, budget)}
        batch = Batch.of(item for place, item in enumerate(self._window) if place in chosen)
        self._window = [item for place, item in enumerate(self._window) if place not in chosen]
        now = time.monotonic()
        for request, indices in batch.parts.items():
            request.started = request.started or now
            request.waiting -= sum([request.lengths[index] for index in indices])
            self.requests -= request.waiting == 0
        self.tokens -= batch.tokens
        return batch

    def _fill(self) -> None:
        """Fill the window with the oldest texts that somebody still waits for."""
        self._window = [item for item in self._window if not item[0].over]
        while self._rest and len(self._window) < WINDOW:
            request = self._rest[0]
            end = min(len(request.lengths), request.windowed + WINDOW - len(self._window))
            if not request.over:
                self._window += [(request, index) for index in range(request.windowed, end)]
                request.windowed = end
            if request.over or end == len(request.lengths):
                self._rest.popleft()


def companions(lengths: Sequence[int], budget: int, full: int) -> list[int]:
    """Return the indices of texts that form a batch with the first: those with the most tokens for what they cost.

    The cost is that of padded tokens, at most `budget` unless the first text alone has more, and of the run.
    """
    if len(lengths) == 1:  # single-text requests should not wait
        return [0]
    order = np.argsort(lengths, kind="stable")
    tokens = np.asarray(lengths)[order]
    place = int(order.argmin())  # of the first text
    ends = np.arange(1, len(tokens) + 1)  # a batch has neighbours in the order of lengths, from a start to an end
    starts = np.maximum(ends - np.maximum(budget // tokens, 1), np.searchsorted(tokens, tokens * _SHORTEST))
    sums = np.zeros(len(tokens) + 1, np.intp)
    tokens.cumsum(out=sums[1:])
    useful = (sums[ends] - sums[starts]) / ((ends - starts) * tokens + full * RUN_SHARE)
    useful[(starts > place) | (ends <= place)] = 0
    row, end = divmod(int(useful.argmax()), len(tokens))
    found: list[int] = order[starts[row, end] : end + 1].tolist()
    return found


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
