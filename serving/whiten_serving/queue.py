"""Hold requests, batches and counts, and plan the batches of what waits. No threads: callers hold a lock."""

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import WhitenError
from whiten_runtime.inference.batching import plan_batches, token_budget, workers_for
from whiten_runtime.inference.engine import TokenizedTexts, TokenRunner

WINDOW = 256
"""Number of texts, the oldest ones, that are planned together: about ten batches of short texts."""

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
    planned: int = 0  # texts that are in a window already
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
        """Finish the vectors, or keep the error that finishing them raises."""
        assert self.vectors is not None
        self.ended = time.monotonic()
        try:
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

    def items(self) -> list[Item]:
        """Return the texts that somebody still waits for."""
        return [(request, index) for request, indices in self.parts.items() if not request.over for index in indices]

    def remaining(self) -> "Batch":
        """Return the batch without texts that nobody waits for any more."""
        return Batch.of(self.items()) if any(request.over for request in self.parts) else self

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


class Queue:
    """Holds the requests that wait, first in first out, and plans their batches.

    The oldest texts, a window of them, are planned together: those of like length share a batch. A window is planned
    when the one before it was taken, so nothing waits longer than the window before it and its own.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.requests = 0
        self._planned: deque[Batch] = deque()
        self._rest: OrderedDict[Request, None] = OrderedDict()

    def add(self, request: Request) -> None:
        """Queue a request behind all others."""
        self._rest[request] = None
        self.tokens += request.waiting
        self.requests += 1

    def drop(self, request: Request) -> None:
        """Forget the texts of a request that wait, if any do."""
        self._rest.pop(request, None)
        if request.waiting:
            self.tokens -= request.waiting
            self.requests -= 1
            request.waiting = 0

    def take(self, idle: int, budget: int) -> Batch | None:
        """Take the next batch; None if no text waits."""
        while self.tokens:
            if not self._planned:
                self._planned.extend(_planned(self._window(), idle, budget))
            batch = self._planned.popleft().remaining()
            if batch.parts:
                for request, indices in batch.parts.items():
                    request.waiting -= sum([request.lengths[index] for index in indices])
                    self.requests -= request.waiting == 0
                self.tokens -= batch.tokens
                return batch
        return None

    def _window(self) -> list[Item]:
        """Return the oldest texts that were not planned yet."""
        window: list[Item] = []
        while self._rest and len(window) < WINDOW:
            request = next(iter(self._rest))
            end = min(len(request.lengths), request.planned + WINDOW - len(window))
            window += [(request, index) for index in range(request.planned, end)]
            request.planned = end
            if end == len(request.lengths):
                del self._rest[request]
        return window


def _planned(window: list[Item], idle: int, budget: int) -> list[Batch]:
    """Return the batches of a window, in the order of the oldest text of each."""
    batches: list[tuple[int, Batch]] = []
    places: dict[tuple[TokenRunner, int], list[int]] = {}  # of texts that may share a batch
    for place, (request, _) in enumerate(window):
        places.setdefault((request.runner, request.texts.prompt_tokens), []).append(place)
    for same in places.values():
        lengths = [request.lengths[index] for request, index in [window[place] for place in same]]
        workers = workers_for(lengths, idle)
        most = budget if workers == 1 else token_budget(lengths, workers, budget)
        for group in plan_batches(lengths, most):
            rows = sorted(same[index] for index in group)
            batches.append((rows[0], Batch.of([window[row] for row in rows])))
    return [batch for _, batch in sorted(batches, key=lambda entry: entry[0])]
