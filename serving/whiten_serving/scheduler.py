"""Queue requests, and compute their texts in batches on threads: `Scheduler`."""

import atexit
import copy
import logging
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from threading import Condition, RLock, Thread, current_thread
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import NOT_FINITE, ClosedError, NoVectorError, RunError, UsageError, one_line
from whiten_runtime.inference.engine import Engine, Interruption, is_out_of_memory
from whiten_runtime.inference.vectors import rows_not_finite
from whiten_runtime.ort.processor import thread_count
from whiten_serving.fairness import FairExecutor, Share
from whiten_serving.requests import (
    Batch,
    BatcherCounters,
    BatcherStats,
    DeadlineExceededError,
    ModelStats,
    OverloadedError,
    Queue,
    Request,
    TooManyTokensError,
    is_number,
)

_log = logging.getLogger("whiten.serving")

MAX_QUEUE_TOKENS = 2_097_152
"""Number of tokens that may wait, which bounds their memory: about 80 MB. A request has half of them at most, as
many as 2,048 texts of 512 tokens."""

_INLINE_SECONDS = 0.003
"""Seconds of work up to which a request that is there by itself is computed by the thread that asks for it: handing it
to a lane and its vectors back takes a quarter of a millisecond."""

_PAUSE = 0.05
"""Seconds after which a lane that could not take a batch tries again."""

_CLOSED = "the batcher was closed before this was computed"
_INTERRUPTED = "interrupted, such as by Ctrl-C in the caller's thread"


@dataclass(eq=False)
class _Run:
    """A batch that runs."""

    batch: Batch
    alone: bool  # whether it has all threads
    began: float  # time of time.monotonic
    interruption: Interruption = field(default_factory=Interruption)
    abandoned: float = math.inf  # time since when nobody waits for it

    def end_if_abandoned(self) -> None:
        """End the batch early if no request waits for its texts any more."""
        if all(request.finished for request in self.batch.parts) and not self.interruption.requested:
            self.abandoned = time.monotonic()
            self.interruption.request()


class Scheduler:
    """Computes requests in lanes, one thread each: clients take turns, and texts of like length share a batch.

    A lane takes a batch as soon as it is free, so no request waits for others to come. A batch that nobody waits for
    any more is ended between two operators of its graph. Batchers of several models can share a scheduler; none runs
    more batches at once than it has workers, so that one which computes a batch at a time leaves the other lanes to the
    others.

    Args:
        lanes: number of batches that run at once.
        max_wait: seconds of work that may go before a request, at the measured rates; None for no bound.

    Raises:
        UsageError: a number is out of range.
    """

    def __init__(self, lanes: int, *, max_wait: float | None = None) -> None:
        self.lanes = thread_count("lanes", lanes)
        if max_wait is not None and not (is_number(max_wait) and max_wait > 0):
            raise UsageError(f"max_wait is {max_wait!r}; wanted seconds greater than 0, or None")
        self.max_wait = max_wait
        self.on_batch: Callable[[Batch], object] = lambda batch: None  # called in a lane with each computed batch
        self.readers = FairExecutor(self.lanes)  # threads that read texts
        self._process = os.getpid()
        lock = RLock()
        self._changed, self._ends = Condition(lock), Condition(lock)  # for lanes; for those who wait for an end
        self._threads: list[Thread] = []
        self._queue, self._tokens, self._counters = Queue(), Share(MAX_QUEUE_TOKENS), BatcherCounters()
        self._open: set[Request] = set()  # requests of whose outcome nobody was told
        self._calling: list[Thread] = []  # threads in callers' functions, which must not wait for others to be told
        self._ended: WeakSet[Engine] = WeakSet()
        self._running: dict[Thread, _Run] = {}  # what lanes and callers compute
        self._closed = False
        _live.add(self)

    def check_open(self, runner: Engine) -> None:
        """Raise ClosedError if requests of a runner are not taken."""
        if self._closed or runner in self._ended:
            raise ClosedError("the batcher is closed; create a new one")

    def _check_process(self) -> None:
        """Raise ClosedError in a forked child, before it waits for a lock that nobody gives back there."""
        if self._process != os.getpid():
            raise ClosedError("the batcher was made before this process was forked; make one in each process")

    def check_room(self, runners: Iterable[Engine], client: str = "") -> None:
        """Raise OverloadedError if even a short request of a client to any of these models would be refused now."""
        self._check_process()
        crowded = self._tokens.total * 2 >= self._tokens.limit
        if crowded or (self.max_wait is not None and self._queue.seconds / self.lanes > self.max_wait):
            with self._changed:  # only now, as a plan may hold it for milliseconds
                self._check_wait(runners, client, 1, math.inf)

    def _check_wait(self, runners: Iterable[Engine], client: str, tokens: int, left: float) -> None:
        """Raise OverloadedError if a request would wait for too long, or finds no room; callers hold the lock."""
        most = min(math.inf if self.max_wait is None else self.max_wait, left)
        waits = self._queue.seconds / self.lanes
        if waits > most:
            waits = min(self._queue.seconds_before(runner, client, tokens) for runner in runners) / self.lanes
        if not self._tokens.admits(client, tokens):
            why = f"{self._tokens.total} tokens wait (limit {self._tokens.limit}, of which each client has a share)"
        elif waits > most > 0:
            why = f"{waits:.1f} s of work go before it (limit {most:.3g} s)"
        else:
            return
        self._counters.rejected += 1
        raise OverloadedError(f"too many requests: {why}; try again in {max(waits, 1):.0f} s", waits)

    def submit(self, request: Request, wake: bool = True) -> None:
        """Queue a request of at least one text. Without `wake`, call `compute_or_wake` afterwards."""
        self._check_process()
        with self._changed:
            self.check_open(request.runner)
            self._start_lanes()
            if request.tokens > (limit := self._tokens.limit // 2):
                self._counters.rejected += 1
                message = f"the request has {request.tokens} tokens; the limit is {limit}: send fewer at once"
                raise TooManyTokensError(message, limit)
            now = time.monotonic()
            self._check_wait([request.runner], request.client, request.tokens, request.deadline - now)
            request.submitted = now
            self._queue.add(request)
            self._tokens.add(request.client, request.tokens)
            self._open.add(request)
            if wake:
                self._wake()

    def _start_lanes(self) -> None:
        """Start the threads that do not run yet; those that the system gives are enough."""
        try:
            while len(self._threads) < self.lanes:
                thread = Thread(target=self._work, name="whiten-lane", daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError as error:
            if not self._threads:
                raise OverloadedError(f"no thread can be started ({error}); try again in 1 s", 1.0) from error

    def compute_or_wake(self) -> None:
        """Compute in the caller's thread a batch, if what waits takes a moment and nothing else runs; else wake a lane.

        Unlike a lane, this does not look for more afterwards: a lane goes on with what waits then.
        """
        if self._running or self._queue.requests > 1:
            if len(self._running) < self.lanes:  # a lane whose batch ends later sees what waits then
                with self._changed:
                    self._wake()
            return
        ended, taken = list[Request](), None
        try:
            with self._changed:
                if not self._closed and self._queue.seconds_of_request() <= _INLINE_SECONDS:
                    taken = self._start(ended)
            self._tell(ended)
            if taken is not None:
                self._run(taken)
        finally:
            self._end(RunError(_INTERRUPTED))
            with self._changed:
                self._changed.notify_all() if self._closed else self._wake()

    def _wake(self) -> None:
        """Wake a lane, if one sleeps and there is something for it; callers hold the lock."""
        if self._queue.ready:
            self._changed.notify()

    def cancel(self, request: Request) -> None:
        """Forget a request whose caller has gone, and end its batches; does nothing if it has its outcome."""
        if not request.finished and self._process == os.getpid():
            with self._changed:
                if not request.finished and request.submitted:
                    self._counters.cancelled += request.queued_tokens > 0
                    self._finish(request)
                    self._forget([request])
                    for run in self._running.values():
                        if request in run.batch.parts:
                            run.end_if_abandoned()

    def stats(self) -> BatcherStats:
        """Return what waits and runs now, and what was done so far."""
        self._check_process()
        with self._changed:
            queue, now = self._queue, time.monotonic()
            oldest = max((now - run.began for run in self._running.values()), default=0.0)
            waiting = queue.requests, queue.tokens, queue.seconds / self.lanes
            return BatcherStats(self.lanes, len(self._running), *waiting, oldest, replace(self._counters))

    def stats_of(self, runner: Engine) -> ModelStats:
        """Return what waits of one model now."""
        self._check_process()
        with self._changed:
            return self._queue.line(runner).stats(self.lanes)

    def failing_seconds(self, runner: Engine) -> float:
        """Return for how long a model has computed no text at all, though it was asked to; 0 if it does."""
        with self._changed:
            since = self._queue.line(runner).failing_since
        return 0.0 if since is None else time.monotonic() - since

    def stuck_seconds(self) -> float:
        """Return for how long a batch has run on that was to end, as nobody waits for it; 0 if none does."""
        with self._changed:
            now = time.monotonic()
            return max([now - run.abandoned for run in self._running.values() if run.abandoned < now], default=0.0)

    def abandon(self) -> None:
        """Take no more requests, and let the threads end without waiting for them: nobody holds the batcher."""
        if self._process == os.getpid():
            self.readers.close()
            with self._changed:
                self._closed = True
                self._changed.notify_all()

    def close(self, wait: bool = True) -> None:
        """Take no more requests, compute what waits, and end the threads; in a `done`, without waiting for that."""
        if self._process != os.getpid():
            return
        self.abandon()
        if not wait:
            self._fail([request for request in list(self._open) if request.queued_tokens], ClosedError(_CLOSED))
        if not self._must_not_wait():
            for lane in self._threads:
                lane.join()

    def begin(self, runner: Engine) -> None:
        """Take requests of a runner, which an earlier batcher may have ended."""
        self._check_process()
        with self._changed:
            self._ended.discard(runner)

    def end(self, runner: Engine, wait: bool = True) -> None:
        """Take no more requests of a runner, return when none is left, and go on with those of others."""
        if self._process != os.getpid():
            return
        with self._changed:
            self._ended.add(runner)
            left = [request for request in self._open if request.runner is runner]
            self._wake()
        if not wait:
            self._fail([request for request in left if request.queued_tokens], ClosedError(_CLOSED))
        if not self._must_not_wait():
            with self._ends:
                self._ends.wait_for(lambda: self._open.isdisjoint(left))

    def _must_not_wait(self) -> bool:
        """Return whether others wait for this thread: a lane, one that computes, or one in a caller's function."""
        return any(current_thread() in threads for threads in (self._threads, self._running, self._calling))

    def _work(self) -> None:
        """Compute batches until the scheduler is closed."""
        while True:
            try:
                taken = self._next()
            except Exception as error:  # such as a second lack of memory: nothing was taken, so another try is safe
                _log.exception("no batch could be taken")
                if self._closed:
                    self._fail(list(self._open), error)
                    return
                time.sleep(_PAUSE)
                continue
            if taken is None:
                return
            self._run(taken)

    def _next(self) -> _Run | None:
        """Wait for a batch and return it; None if the scheduler is closed."""
        while True:
            ended: list[Request] = []
            with self._changed:
                taken = self._start(ended)
                if taken is None and not ended:
                    if self._closed and self._running.keys() <= set(self._threads):
                        return None
                    self._changed.wait()
            self._tell(ended)
            if taken is not None:
                return taken

    def _start(self, ended: list[Request]) -> _Run | None:
        """Take a batch, if there is one, for a lane that is busy from now on; callers hold the lock."""
        batch = self._take(ended)
        if batch is None:
            return None
        crowd = self.lanes if self._queue.ready else len(self._running) + 1
        alone = 2 * crowd <= batch.runner.schedule.workers  # at least half the threads would be idle
        run = self._running[current_thread()] = _Run(batch, alone, time.monotonic())
        self._wake()
        return run

    def _take(self, ended: list[Request]) -> Batch | None:
        """Return a batch, if there is one; callers hold the lock, and tell the requests in `ended`.

        Those are late, or the next one where no batch can be formed, for want of memory: nobody may wait for ever.
        """
        now, late = time.monotonic(), list[Request]()
        try:
            return self._queue.take(self.lanes - len(self._running), now, late)
        except Exception as reason:
            _log.exception("no batch could be formed")
            if (first := self._queue.first()) is not None:
                ended.append(first)
                self._finish(first, reason)
            return None
        finally:
            for request in late:
                ended.append(request)
                self._counters.expired += 1
                seconds = request.deadline - request.submitted
                self._finish(request, DeadlineExceededError(f"not computed within {seconds:.1f} s"))

    def _run(self, run: _Run) -> None:
        """Compute a batch, give its texts an outcome, and note how long it took."""
        start = time.perf_counter()
        try:
            with run.interruption:
                computed = self._compute(run, run.batch)
            self._end(None, time.perf_counter() - start, computed)
        except Exception as error:  # nobody may wait for ever, whatever went wrong
            _log.exception("a batch failed")
            self._end(error)
        finally:
            self._end(RunError(_INTERRUPTED))

    def _end(self, error: Exception | None, seconds: float = 0.0, computed: bool = False) -> None:
        """Note that the batch of this thread, if it has one, does not run any more, and how long it took or why not."""
        if current_thread() not in self._running:
            return
        batch = self._running[current_thread()].batch
        if error is not None:
            self._fail(batch.parts, error)
        share = max(1, self.lanes / batch.runner.schedule.workers)  # of all lanes, where this model can use fewer
        with self._changed:
            del self._running[current_thread()]
            self._queue.end(batch, seconds, share, computed)

    def _compute(self, run: _Run, batch: Batch) -> bool:
        """Compute a batch, or its texts one by one if it fails; return whether it did not fail."""
        line = self._queue.line(batch.runner)
        try:
            vectors = batch.run(run.alone)
        except Exception as error:
            if run.interruption.requested:
                return False
            if batch.texts == 1:
                ((request, (index,)),) = batch.parts.items()
                if isinstance(error, NoVectorError):
                    line.failing_since = None  # the engine computes a text of one token
                elif line.failing_since is None and isinstance(error, RunError) and not is_out_of_memory(error):
                    line.failing_since = time.monotonic()  # it does not
                self._fail([request], error.moved(index) if isinstance(error, NoVectorError) else error)
                return False
            for request, indices in batch.parts.items():  # a text must not fail the requests that share its batch
                for index in indices:
                    if line.failing_since is not None:
                        self._fail([request], error)
                    if not request.finished:
                        self._compute(run, Batch.of([(request, index)]))
            return False
        line.failing_since = None
        self._deliver(batch, vectors)
        self._call(self.on_batch, batch)
        return True

    def _deliver(self, batch: Batch, vectors: NDArray[np.float32]) -> None:
        """Give vectors to their requests, count them, and tell the callers of those that are complete."""
        bad = rows_not_finite(vectors)
        finished, end = list[Request](), 0
        try:
            with self._changed:
                counters = self._counters
                counters.texts += batch.texts
                counters.tokens += batch.tokens
                counters.padding += batch.padding
                counters.batches += 1
                for request, indices in batch.parts.items():
                    start, end = end, end + len(indices)
                    if request.finished:
                        continue
                    lost = [index for row, index in enumerate(indices, start) if row in bad]
                    if lost or request.store(indices, vectors[start:end].copy()):
                        finished.append(request)
                        self._finish(request, NoVectorError(dict.fromkeys(lost, NOT_FINITE)) if lost else None)
        finally:  # even if memory is short for the others
            for request in finished:
                request.complete()
            self._tell(finished)

    def _fail(self, requests: Iterable[Request], error: Exception) -> None:
        """Give requests that have no outcome an error, each its own: whoever raises it adds a traceback."""
        with self._changed:
            failed = [request for request in requests if not request.finished]
            for number, request in enumerate(failed):
                self._finish(request, _copy(error) if number else error)
        self._tell(failed)

    def _finish(self, request: Request, error: Exception | None = None) -> None:
        """Note that a request has its outcome, or that its caller has gone; callers hold the lock."""
        if isinstance(error, NoVectorError) and request.places is not None:
            error = error.placed(request.places)
        request.finished, request.error = True, error
        self._queue.drop(request)
        self._tokens.add(request.client, -request.tokens)

    def _tell(self, requests: list[Request]) -> None:
        """Tell callers that their requests have outcomes."""
        for request in requests:
            self._call(request.done, request)
        if requests:
            with self._changed:
                self._forget(requests)

    def _call(self, function: Callable[[Any], object], value: object) -> None:
        """Call a caller's function in a lane, and log what it raises, which must not end the lane."""
        self._calling.append(current_thread())
        try:
            function(value)
        except BaseException:
            _log.exception("a function that was called with what a lane computed raised; the lane goes on")
        finally:
            self._calling.remove(current_thread())

    def _forget(self, requests: list[Request]) -> None:
        """Let those who wait for the end of requests go on; callers hold the lock."""
        self._open.difference_update(requests)
        self._ends.notify_all()


def _copy(error: Exception) -> Exception:
    """Return an error like another one; one in its words where its class cannot be copied."""
    try:
        copied = copy.copy(error)
    except Exception:
        copied = RunError(one_line(error))
    copied.__cause__ = error
    return copied


_live: WeakSet[Scheduler] = WeakSet()


def _close_all() -> None:
    """Close what is open when the interpreter ends, which would otherwise end threads inside onnxruntime and abort."""
    for scheduler in list(_live):
        scheduler.close(wait=False)


atexit.register(_close_all)
