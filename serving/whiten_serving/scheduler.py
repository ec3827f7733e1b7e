"""Queue requests, and compute their texts in batches on threads: `Scheduler`."""

import atexit
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from threading import Condition, RLock, Thread, current_thread
from weakref import WeakSet

from whiten_runtime.errors import ClosedError, RunError
from whiten_runtime.inference.engine import Engine
from whiten_serving.admission import Limits
from whiten_serving.outcomes import Outcomes
from whiten_serving.queue import Queue
from whiten_serving.requests import Batch, BatcherStats, ModelStats, OverloadedError, Request, TooManyTokensError

_log = logging.getLogger("whiten.serving")
_INLINE_SECONDS = 0.003
"""Seconds of work up to which a request that is there by itself is computed by the thread that asks for it: handing it
to a lane and its vectors back takes a quarter of a millisecond."""
_PAUSE = 0.05
"""Seconds after which a lane that could not take a batch tries again."""
_CLOSED = "the batcher was closed before this was computed"
_INTERRUPTED = "interrupted, such as by Ctrl-C in the caller's thread"


class Scheduler:
    """Computes requests in lanes, one thread each: requests take turns, and texts of like length share a batch.

    A lane takes a batch as soon as it is free, so no request waits for others to come, and a request that is cancelled
    costs at most the batches that run already. Batchers of several models can share a scheduler; none runs more batches
    at once than it has workers, so that one which computes a batch at a time leaves the other lanes to the others.
    """

    def __init__(self, lanes: int, *, max_wait: float | None = None) -> None:
        self.limits = Limits(lanes, max_wait)
        self.lanes = self.limits.lanes
        self.on_batch: Callable[[Batch], object] = lambda batch: None  # called in a lane with each computed batch
        self._process = os.getpid()
        lock = RLock()
        self._changed = Condition(lock)  # for lanes
        self._threads: list[Thread] = []
        self._queue = Queue()
        self._outcomes = Outcomes(lock, self._queue)
        self._ended: WeakSet[Engine] = WeakSet()
        self._asleep = 0  # lanes that sleep and that nobody has woken
        self._running: dict[Thread, tuple[Batch, float]] = {}  # what lanes and callers compute, and when each began it
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

    def check_room(self, client: str = "") -> None:
        """Raise OverloadedError if even a short request of a client would be refused now."""
        self._check_process()
        if self.limits.may_refuse(self._queue):  # without the lock, which a plan may hold for milliseconds
            with self._changed, self._outcomes.counting_refusals():
                self.limits.check_wait(self._queue, client)

    def submit(self, request: Request, wake: bool = True) -> None:
        """Queue a request of at least one text. Without `wake`, an idle lane takes it after a call of `wake`."""
        self._check_process()
        with self._changed:
            self.check_open(request.runner)
            self._start_lanes()
            try:
                with self._outcomes.counting_refusals():
                    self.limits.check(self._queue, request, time.monotonic())
            except TooManyTokensError:
                line = self._queue.line(request.runner)
                if line.idle and request.tokens <= self.limits.max_queue_tokens:  # nothing else measures the rate anew
                    self._add(request.sample(line.schedule.budget), wake=True)
                raise
            self._add(request, wake)

    def _add(self, request: Request, wake: bool) -> None:
        request.submitted = time.monotonic()
        self._queue.add(request)
        self._outcomes.open.add(request)
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

    def wake(self) -> None:
        """Let an idle lane take what waits."""
        if self._asleep:  # a lane that falls asleep after this has seen what waits
            with self._changed:
                self._wake()

    def compute_or_wake(self) -> None:
        """Compute in the caller's thread a batch, if what waits takes a moment and nothing else runs; else wake a lane.

        Unlike a lane, this does not look for more afterwards: a lane goes on with what waits then.
        """
        if self._running or self._queue.requests > 1:
            self.wake()
            return
        ended, taken = list[Request](), None
        try:
            with self._changed:
                if not self._closed and self._queue.seconds_of_text() <= _INLINE_SECONDS:
                    taken = self._start(ended)
            self._outcomes.tell(ended)
            if taken is not None:
                self._run(*taken)
        finally:
            self._end(None, RunError(_INTERRUPTED))
            with self._changed:
                self._changed.notify_all() if self._closed else self._wake()

    def _wake(self) -> None:
        """Wake a lane that sleeps, if there is one and something for it; callers hold the lock."""
        if self._asleep and self._queue.ready:
            self._asleep -= 1
            self._changed.notify()

    def cancel(self, request: Request) -> None:
        """Forget a request whose caller has gone; does nothing if it has its outcome."""
        if not request.finished and self._process == os.getpid():
            with self._changed:
                if not request.finished and request.submitted:
                    self._outcomes.counters.cancelled += request.queued_tokens > 0
                    self._outcomes.set(request)
                    self._outcomes.forget([request])

    def stats(self) -> BatcherStats:
        """Return what waits and runs now, and what was done so far."""
        self._check_process()
        with self._changed:
            queue, now = self._queue, time.monotonic()
            oldest = max((now - began for _, began in self._running.values()), default=0.0)
            waiting = queue.requests, queue.tokens, queue.seconds / self.lanes
            return BatcherStats(self.lanes, len(self._running), *waiting, oldest, replace(self._outcomes.counters))

    def stats_of(self, runner: Engine) -> ModelStats:
        """Return what waits of one model now, and at which rate its batches are computed."""
        self._check_process()
        with self._changed:
            return self._queue.line(runner).stats(self.lanes)

    def abandon(self) -> None:
        """Take no more requests, and let the threads end without waiting for them: nobody holds the batcher."""
        if self._process == os.getpid():
            with self._changed:
                self._closed = True
                self._changed.notify_all()

    def close(self, wait: bool = True) -> None:
        """Take no more requests, compute what waits, and end the threads; in a `done`, without waiting for that."""
        if self._process != os.getpid():
            return
        self.abandon()
        if not wait:
            left = list(self._outcomes.open)
            self._outcomes.fail([request for request in left if request.queued_tokens], ClosedError(_CLOSED))
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
            left = self._outcomes.of(runner)
            self._wake()
        if not wait:
            self._outcomes.fail([request for request in left if request.queued_tokens], ClosedError(_CLOSED))
        if not self._must_not_wait():
            self._outcomes.wait_for(left)

    def _must_not_wait(self) -> bool:
        """Return whether others wait for this thread: a lane, one that computes, or one in a caller's function."""
        return any(current_thread() in threads for threads in (self._threads, self._running, self._outcomes.calling))

    def _work(self) -> None:
        """Compute batches until the scheduler is closed."""
        while True:
            try:
                taken = self._next()
            except Exception as error:  # such as a second lack of memory: nothing was taken, so another try is safe
                _log.exception("no batch could be taken")
                if self._closed:
                    self._outcomes.fail(list(self._outcomes.open), error)
                    return
                time.sleep(_PAUSE)
                continue
            if taken is None:
                return
            self._run(*taken)

    def _run(self, batch: Batch, alone: bool) -> None:
        """Compute a batch, give its texts an outcome, and note how long it took."""
        start = time.perf_counter()
        try:
            computed = self._outcomes.compute(batch, alone, self.on_batch)
            self._end(time.perf_counter() - start if computed else None)
        except Exception as error:  # nobody may wait for ever, whatever went wrong
            _log.exception("a batch failed")
            self._end(None, error)
        finally:
            self._end(None, RunError(_INTERRUPTED))

    def _end(self, seconds: float | None, error: Exception | None = None) -> None:
        """Note that the batch of this thread, if it has one, does not run any more, and how long it took or why not."""
        if current_thread() not in self._running:
            return
        batch, _ = self._running[current_thread()]
        if error is not None:
            self._outcomes.fail(batch.parts, error)
        share = max(1, self.lanes / batch.runner.schedule.workers)  # of all lanes, where this model can use fewer
        with self._changed:
            del self._running[current_thread()]
            self._queue.end(batch, seconds, share)

    def _next(self) -> tuple[Batch, bool] | None:
        """Wait for a batch; return it, and whether it has all threads. Returns None if the scheduler is closed."""
        while True:
            ended: list[Request] = []
            with self._changed:
                taken = self._start(ended)
                if taken is None and not ended:
                    if self._closed and self._running.keys() <= set(self._threads):
                        return None
                    self._asleep += 1
                    self._changed.wait()
            self._outcomes.tell(ended)
            if taken is not None:
                return taken

    def _start(self, ended: list[Request]) -> tuple[Batch, bool] | None:
        """Take a batch, if there is one, for a lane that is busy from now on; callers hold the lock."""
        batch = self._take(ended)
        if batch is None:
            return None
        self._running[current_thread()] = batch, time.monotonic()
        self._wake()
        crowd = self.lanes if self._queue.ready else len(self._running)
        return batch, 2 * crowd <= batch.runner.schedule.workers  # at least half the threads would be idle

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
                self._outcomes.set(first, reason)
            return None
        finally:
            for request in late:
                ended.append(request)
                self._outcomes.expire(request)


_live: WeakSet[Scheduler] = WeakSet()


def _close_all() -> None:
    """Close what is open when the interpreter ends, which would otherwise end threads inside onnxruntime and abort."""
    for scheduler in list(_live):
        scheduler.close(wait=False)


atexit.register(_close_all)
