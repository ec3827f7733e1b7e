"""Queue requests, and compute their texts in batches on threads: `Scheduler`."""

import logging
import math
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from numbers import Real
from threading import Condition, RLock, Thread, current_thread
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.checks import whole_number
from whiten_runtime.errors import UsageError, WhitenError
from whiten_runtime.inference.batching import plan_batches, token_budget, workers_for
from whiten_runtime.inference.engine import TokenizedTexts, TokenRunner
from whiten_runtime.inference.vectors import not_finite, rows_not_finite
from whiten_runtime.ort.process import before_exit
from whiten_runtime.ort.processor import thread_count

MAX_QUEUE_TOKENS = 131_072
"""Default for the number of tokens that may wait: some seconds of a small model on two cores."""

WINDOW = 256
"""Number of texts, the oldest ones, that are planned together: about ten batches of short texts."""

_MEMORY = 0.95
"""Share of the earlier measurements that the rate keeps with each batch: about the last twenty count. With fewer, too
much is accepted whenever some batches happen to be fast."""

Finish = Callable[[NDArray[np.float32]], NDArray[Any]]
"""Function that makes a caller's vectors of those of the graph: cut, normalised, quantised."""

_log = logging.getLogger("whiten.serving")


class OverloadedError(WhitenError):
    """Raised when a request is refused because too much work waits already.

    Attributes:
        retry_after: seconds until the work that waits is done, at the rate measured so far.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineExceededError(WhitenError, TimeoutError):
    """Raised when a request was not computed by its deadline."""


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
    tokens: int = 0  # an empty text counts as one
    planned: int = 0  # texts that are in a window already
    waiting: int = 0  # tokens that no lane has taken
    left: int = 0  # texts that are not computed
    over: bool = False  # it has its outcome, or its caller has gone
    result: NDArray[Any] | None = None
    error: Exception | None = None
    vectors: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        self.tokens = self.waiting = sum([len(row) or 1 for row in self.texts.ids])
        self.left = len(self.texts.ids)

    @property
    def key(self) -> tuple[int, int]:
        """Return what texts of one batch have in common: the graph, and the length of the prompt."""
        return id(self.runner), self.texts.prompt_tokens

    def keep(self, indices: list[int], vectors: NDArray[np.float32]) -> bool:
        """Take the vectors of some of its texts, and return whether all are there."""
        if len(indices) == len(self.texts.ids):
            self.vectors = vectors
        else:
            if self.vectors is None:
                self.vectors = np.empty((len(self.texts.ids), vectors.shape[1]), np.float32)
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
    """Holds texts that are computed together; all are of requests with the same key."""

    items: Sequence[Item]  # the texts of a request stand one after the other
    tokens: int
    padding: int

    @classmethod
    def of(cls, items: Sequence[Item]) -> "Batch":
        """Return a batch of these texts."""
        lengths = [_length(item) for item in items]
        return cls(items, sum(lengths), len(lengths) * max(lengths) - sum(lengths))

    def run(self, alone: bool) -> NDArray[np.float32]:
        """Compute the vectors of the texts, float32 [n, k], in their order."""
        first = self.items[0][0]
        ids = [request.texts.ids[index] for request, index in self.items]
        vectors = first.runner.run(ids, first.texts.prompt_tokens, alone=alone)
        if len(vectors) != len(ids):
            raise WhitenError(f"the graph gave {len(vectors)} vectors for {len(ids)} texts; export it again")
        return vectors

    def by_request(self) -> list[tuple[Request, list[int]]]:
        """Return (request, rows of the batch) for each request."""
        places = groupby(range(len(self.items)), key=lambda place: id(self.items[place][0]))
        return [(self.items[rows[0]][0], rows) for rows in (list(group) for _, group in places)]


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
    """Holds the requests that wait, first in first out, and plans their batches. No threads: callers hold a lock.

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
            items = [item for item in self._planned.popleft().items if not item[0].over]
            if items:
                batch = Batch.of(items)
                for item in items:
                    item[0].waiting -= _length(item)
                    self.requests -= item[0].waiting == 0
                self.tokens -= batch.tokens
                return batch
        return None

    def _window(self) -> list[Item]:
        """Return the oldest texts that were not planned yet."""
        window: list[Item] = []
        while self._rest and len(window) < WINDOW:
            request = next(iter(self._rest))
            end = min(len(request.texts.ids), request.planned + WINDOW - len(window))
            window += [(request, index) for index in range(request.planned, end)]
            request.planned = end
            if end == len(request.texts.ids):
                del self._rest[request]
        return window


class Scheduler:
    """Computes requests in lanes, one thread each: oldest first, texts of like length together.

    A lane takes a batch as soon as it is free, so no request waits for others to come, and a request that is cancelled
    costs at most the batches that run already. Several batchers can share one scheduler.
    """

    def __init__(
        self,
        lanes: int,
        max_batch_tokens: int,
        *,
        max_queue_tokens: int = MAX_QUEUE_TOKENS,
        max_wait: float | None = None,
        on_batch: Callable[[BatchRun], object] = lambda run: None,
    ) -> None:
        self.lanes = thread_count("lanes", lanes)
        self.max_batch_tokens = whole_number("max_batch_tokens", max_batch_tokens, 1)
        self.max_queue_tokens = whole_number("max_queue_tokens", max_queue_tokens, 1)
        if max_wait is not None and not (is_number(max_wait) and max_wait > 0):
            raise UsageError(f"max_wait is {max_wait!r}; wanted seconds greater than 0, or None")
        self.max_wait = max_wait
        self.on_batch = on_batch
        self._process = os.getpid()
        lock = RLock()
        self._changed, self._emptied = Condition(lock), Condition(lock)  # for lanes; for those who wait for none
        self._threads: list[Thread] = []
        self._queue = Queue()
        self._counters = Counters()
        self._open: dict[TokenRunner, set[Request]] = {}  # requests without an outcome
        self._ended: WeakSet[TokenRunner] = WeakSet()
        self._busy = 0
        self._closed = False
        self._rate_tokens = self._rate_seconds = 0.0
        _live.add(self)

    def check_open(self, runner: TokenRunner) -> None:
        """Raise WhitenError if requests of a runner are not taken."""
        if self._process != os.getpid():
            raise WhitenError("the batcher was made before this process was forked; make one in each process")
        if self._closed or runner in self._ended:
            raise WhitenError("the batcher is closed; create a new one")

    def check_room(self, tokens: int = 1) -> None:
        """Raise OverloadedError if work of so many tokens would be refused now. Work that need not wait is taken."""
        waiting = self._queue.tokens  # without the lock, which a plan may hold for milliseconds
        if not waiting:
            return
        seconds = self._seconds_for(waiting)
        if waiting + tokens > self.max_queue_tokens:
            why = f"{waiting} tokens wait, and {self.max_queue_tokens} may"
        elif self.max_wait is not None and seconds * (waiting + tokens) / waiting > self.max_wait:
            why = f"{seconds:.1f} s of work wait, and {self.max_wait:g} s may"
        else:
            return
        with self._changed:
            self._counters.rejected += 1
        raise OverloadedError(f"too many requests: {why}; try again in {max(seconds, 1):.0f} s", seconds)

    def submit(self, request: Request) -> None:
        """Queue a request of at least one text."""
        with self._changed:
            self.check_open(request.runner)
            self.check_room(request.tokens)
            if not self._threads:
                self._threads = [
                    Thread(target=self._work, name=f"whiten-lane-{number}", daemon=True) for number in range(self.lanes)
                ]
                for thread in self._threads:
                    thread.start()
            request.submitted = time.monotonic()
            self._queue.add(request)
            self._open.setdefault(request.runner, set()).add(request)
            self._changed.notify()

    def cancel(self, request: Request) -> None:
        """Forget a request whose caller has gone; does nothing if it has its outcome."""
        if not request.over:
            with self._changed:
                if not request.over and request.submitted:
                    self._counters.departed += request.waiting > 0
                    self._settle(request)

    def stats(self) -> Stats:
        """Return what waits and runs now, and what was done so far."""
        with self._changed:
            queue, rate = self._queue, self._rate_seconds and self._rate_tokens * self.lanes / self._rate_seconds
            seconds = self._seconds_for(queue.tokens)
            counted = replace(self._counters)
            return Stats(self.lanes, self._busy, queue.requests, queue.tokens, seconds, rate, counted)

    def close(self, wait: bool = True) -> None:
        """Take no more requests, compute what waits, and end the threads. A lane that calls this does not wait."""
        if self._process != os.getpid():
            return
        with self._changed:
            self._closed = True
            abandoned = [] if wait else self._abandoned(list(self._open))
            self._changed.notify_all()
        _tell(abandoned)
        for lane in self._threads:
            if lane is not current_thread():
                lane.join()

    def end(self, runner: TokenRunner, wait: bool = True) -> None:
        """Take no more requests of a runner, return when none is left, and go on with those of others."""
        with self._changed:
            self._ended.add(runner)
            abandoned = [] if wait else self._abandoned([runner])
        _tell(abandoned)
        with self._changed:
            if current_thread() not in self._threads:
                self._emptied.wait_for(lambda: runner not in self._open)

    def _work(self) -> None:
        """Compute batches until the scheduler is closed."""
        while (taken := self._next()) is not None:
            batch, alone = taken
            start, computed = time.perf_counter(), False
            try:
                computed = self._compute(batch, alone)
            except Exception as error:  # nobody may wait for ever, whatever went wrong
                _log.exception("a batch failed")
                self._fail([request for request, _ in batch.by_request()], error)
            with self._changed:
                self._busy -= 1
                self._counters.failed += not computed
                if computed:
                    self._rate_tokens = self._rate_tokens * _MEMORY + batch.tokens
                    self._rate_seconds = self._rate_seconds * _MEMORY + time.perf_counter() - start

    def _next(self) -> tuple[Batch, bool] | None:
        """Wait for a batch; return it, and whether it is the only one. Returns None if the scheduler is closed."""
        while True:
            late: list[Request] = []
            with self._changed:
                while (batch := self._taken(late)) is None and not late:
                    if self._closed:
                        return None
                    self._changed.wait()
                if batch is not None:
                    self._busy += 1
                    if self._queue.tokens and self._busy < self.lanes:
                        self._changed.notify()
                    alone = self._busy == 1 and not self._queue.tokens
            _tell(late)
            if batch is not None:
                return batch, alone

    def _taken(self, late: list[Request]) -> Batch | None:
        """Take the next batch, without requests that are late, which are added to `late`; None if nothing waits."""
        while (batch := self._queue.take(self.lanes - self._busy, self.max_batch_tokens)) is not None:
            now = time.monotonic()
            for request, _ in batch.by_request():
                if now >= request.deadline:
                    self._counters.late += 1
                    seconds = request.deadline - request.submitted
                    request.error = DeadlineExceededError(f"not computed within {seconds:.1f} s")
                    self._settle(request)
                    late.append(request)
                request.started = request.started or now
            items = [item for item in batch.items if not item[0].over]
            if items:
                return batch if len(items) == len(batch.items) else Batch.of(items)
        return None

    def _compute(self, batch: Batch, alone: bool) -> bool:
        """Compute a batch, or its texts one by one if it fails; return whether it did not fail."""
        start = time.perf_counter()
        try:
            vectors = batch.run(alone)
        except Exception as error:
            if len(batch.items) == 1:
                self._fail([batch.items[0][0]], error)
            else:  # a text must not fail the requests that share its batch
                for item in batch.items:
                    if not item[0].over:
                        self._compute(Batch.of([item]), alone)
            return False
        seconds = time.perf_counter() - start
        self._give(batch, vectors)
        runner = batch.items[0][0].runner
        _call(self.on_batch, BatchRun(runner, len(batch.items), batch.tokens, batch.padding, seconds, vectors))
        return True

    def _give(self, batch: Batch, vectors: NDArray[np.float32]) -> None:
        """Give vectors to their requests, and tell the callers of those that are complete."""
        bad = rows_not_finite(vectors)
        settled: list[Request] = []
        with self._changed:
            self._counters.texts += len(batch.items)
            self._counters.tokens += batch.tokens
            self._counters.padding += batch.padding
            self._counters.batches += 1
            for request, rows in batch.by_request():
                if request.over:
                    continue
                indices = [batch.items[row][1] for row in rows]
                lost = bad.intersection(rows) if bad else ()
                if lost:
                    request.error = not_finite("texts", batch.items[min(lost)][1])
                if lost or request.keep(indices, vectors[rows]):
                    self._settle(request)
                    settled.append(request)
        for request in settled:
            if request.error is None:
                request.complete()
        _tell(settled)

    def _fail(self, requests: Iterable[Request], error: Exception) -> None:
        """Give requests that have no outcome an error."""
        with self._changed:
            failed = [request for request in requests if not request.over]
            for request in failed:
                request.error = error
                self._settle(request)
        _tell(failed)

    def _abandoned(self, runners: Iterable[TokenRunner]) -> list[Request]:
        """Fail the requests of runners that wait, and return them; callers hold the lock."""
        found = [request for runner in runners for request in self._open.get(runner, ()) if request.waiting]
        for request in found:
            request.error = WhitenError("the batcher was closed before this was computed")
            self._settle(request)
        return found

    def _settle(self, request: Request) -> None:
        """Note that a request has its outcome, or that its caller has gone; callers hold the lock."""
        request.over = True
        self._queue.drop(request)
        others = self._open.get(request.runner, set())
        others.discard(request)
        if not others:
            self._open.pop(request.runner, None)
            self._emptied.notify_all()

    def _seconds_for(self, tokens: int) -> float:
        """Return the time that tokens take; 0 before the first batch."""
        return tokens * self._rate_seconds / self._rate_tokens / self.lanes if self._rate_tokens else 0.0


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


def _length(item: Item) -> int:
    return len(item[0].texts.ids[item[1]]) or 1


def _planned(window: list[Item], idle: int, budget: int) -> list[Batch]:
    """Return the batches of a window, in the order of the oldest text of each."""
    batches: list[tuple[int, Batch]] = []
    places: dict[tuple[int, int], list[int]] = {}
    for place, item in enumerate(window):
        places.setdefault(item[0].key, []).append(place)
    for same in places.values():
        lengths = [_length(window[place]) for place in same]
        workers = workers_for(lengths, idle)
        most = budget if workers == 1 else token_budget(lengths, workers, budget)
        for group in plan_batches(lengths, most):
            rows = sorted(same[index] for index in group)
            batches.append((rows[0], Batch.of([window[row] for row in rows])))
    return [batch for _, batch in sorted(batches, key=lambda entry: entry[0])]


def _tell(requests: Iterable[Request]) -> None:
    """Tell callers that their requests have outcomes."""
    for request in requests:
        _call(request.done, request)


def _call(function: Callable[[Any], object], given: object) -> None:
    """Call a caller's function in a lane, and log what it raises, which must not end the lane."""
    try:
        function(given)
    except BaseException:
        _log.exception("a function that was called with what a lane computed raised; the lane goes on")


_live: WeakSet[Scheduler] = WeakSet()


def _close_all() -> None:
    """Close what is open when the interpreter ends, which would otherwise end threads inside onnxruntime and abort."""
    for scheduler in list(_live):
        scheduler.close(wait=False)


before_exit(_close_all)
