"""Compute queued requests on threads, one batch a thread at a time: `Lanes`."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from threading import Condition, RLock, Thread, current_thread
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.checks import whole_number
from whiten_runtime.errors import WhitenError
from whiten_runtime.inference.token_runner import TokenRunner
from whiten_runtime.inference.vectors import not_finite
from whiten_serving.batching.batch import Batch
from whiten_serving.batching.bounds import Bounds
from whiten_serving.batching.counters import BatchRun, Counters, Stats
from whiten_serving.batching.delivery import call, deliver
from whiten_serving.batching.processes import follow_process
from whiten_serving.batching.queue import Queue
from whiten_serving.batching.rate import Rate
from whiten_serving.batching.request import Request
from whiten_serving.errors import DeadlineExceededError, OverloadedError

_log = logging.getLogger("whiten_serving")


class Lanes:
    """Computes requests on threads, oldest first, texts of like length together. Several encoders can share them.

    A lane takes a batch as soon as it is free, so no request waits for others to come. What a lane takes is one batch,
    so a request that is cancelled costs at most the batches that run already. Usable in forked children, which have
    lanes of their own and none of the parent's requests.

    Args:
        count: number of batches that run at once.
        budget: number of padded tokens of a batch at most.
        bounds: how much work may wait.
        watch: function that is called with each batch that was computed, in its lane.

    Raises:
        UsageError: a number is out of range.
    """

    def __init__(
        self,
        count: int,
        budget: int,
        bounds: Bounds | None = None,
        watch: Callable[[BatchRun], object] = lambda run: None,
    ) -> None:
        self.count = whole_number("lanes", count, 1)
        self.budget = whole_number("max_batch_tokens", budget, 1)
        self.bounds = bounds or Bounds()
        self._watch = watch
        self._closed = False
        self._ended: WeakSet[TokenRunner] = WeakSet()
        self.reset()
        follow_process(self)

    def reset(self) -> None:
        """Forget threads and requests, which are the parent's in a forked child."""
        lock = RLock()
        self._changed, self._emptied = Condition(lock), Condition(lock)
        self._threads: list[Thread] = []
        self._queue = Queue()
        self._rate = Rate()
        self._counters = Counters()
        self._busy = 0
        self._open: dict[TokenRunner, set[Request]] = {}

    def check_open(self, runner: TokenRunner) -> None:
        """Raise WhitenError if requests of a runner are not taken any more."""
        with self._changed:
            self._check_open(runner)

    def check_room(self, tokens: int = 1) -> None:
        """Raise OverloadedError if work of so many tokens would be refused now: nothing need be tokenised for that."""
        with self._changed:
            self._check_room(tokens)

    def submit(self, request: Request) -> None:
        """Queue a request of at least one text. One that is larger than the bounds is taken if nothing waits.

        Raises:
            OverloadedError: too much work waits already.
            WhitenError: the lanes are closed.
        """
        with self._changed:
            self._check_open(request.runner)
            self._check_room(request.tokens)
            self._start()
            request.submitted = time.monotonic()
            self._queue.add(request)
            self._open.setdefault(request.runner, set()).add(request)
            self._changed.notify()

    def cancel(self, request: Request) -> None:
        """Forget a request whose caller has gone; does nothing if it has its outcome."""
        with self._changed:
            if request in self._open.get(request.runner, ()):
                self._settle(request)
                self._counters.departed += request.waiting > 0
                self._queue.drop(request)

    def stats(self) -> Stats:
        """Return what waits and runs now, and what was done so far."""
        with self._changed:
            tokens = self._queue.tokens
            rate = self._rate.tokens * self.count / self._rate.seconds if self._rate.seconds else 0.0
            wait = self._rate.seconds_for(tokens, self.count)
            counted = replace(self._counters)
            return Stats(self.count, self._busy, self._queue.requests, tokens, wait, rate, counted)

    def close(self, wait: bool = True) -> None:
        """Take no more requests, compute what waits, and end the threads. A lane that calls this does not wait.

        Args:
            wait: return when all is computed; False fails what waits, and returns when the running batches end.
        """
        with self._changed:
            self._closed = True
            abandoned = [] if wait else self._abandoned(list(self._open))
            self._changed.notify_all()
        deliver(abandoned)
        while running := [lane for lane in self._threads if lane.is_alive() and lane is not current_thread()]:
            for lane in running:  # one that runs still may start another
                lane.join()

    def end(self, runner: TokenRunner, wait: bool = True) -> None:
        """Take no more requests of a runner, return when none is left, and leave the lanes open for others.

        Args:
            runner: the runner.
            wait: compute what waits; False fails it.
        """
        with self._changed:
            self._ended.add(runner)
            abandoned = [] if wait else self._abandoned([runner])
        deliver(abandoned)
        with self._changed:
            if current_thread() not in self._threads:
                self._emptied.wait_for(lambda: runner not in self._open)

    def _check_open(self, runner: TokenRunner) -> None:
        if self._closed or runner in self._ended:
            raise WhitenError("the batcher is closed; create a new one")

    def _check_room(self, tokens: int) -> None:
        waiting = self._queue.tokens
        try:
            self.bounds.check(waiting, tokens, self._rate.seconds_for(waiting, self.count))
        except OverloadedError:
            self._counters.rejected += 1
            raise

    def _start(self) -> None:
        """Start a lane if one is missing and all others are busy.

        Raises:
            WhitenError: there is no lane, and none can be started.
        """
        if len(self._threads) < self.count and self._busy >= len(self._threads):
            thread = Thread(target=self._work, name=f"whiten-lane-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system's limit is reached, or the interpreter is ending
                if not self._threads:
                    raise WhitenError(f"no thread can be started: {error}") from error
            else:
                self._threads.append(thread)

    def _work(self) -> None:
        while True:
            try:
                while (taken := self._next()) is not None:
                    self._run(*taken)
            except Exception:  # memory is short
                _log.exception("a lane failed; it goes on")
            else:
                return

    def _run(self, batch: Batch, alone: bool, since: float) -> None:
        """Compute a batch, and count it."""
        start = time.perf_counter()
        computed = False
        try:
            computed = self._compute(batch, alone)
        finally:
            end = time.perf_counter()
            with self._changed:
                self._busy -= 1
                self._counters.failed += not computed
                if computed:
                    self._rate.add(batch.tokens, end - since)
        if computed:
            call(self._watch, BatchRun.of(batch, end - start))

    def _next(self) -> tuple[Batch, bool, float] | None:
        """Wait for a batch; return it, whether it is the only one, and since when the lane did nothing else.

        Returns None if the lanes are closed.
        """
        since = time.perf_counter()
        while True:
            late: list[Request] = []
            with self._changed:
                while (batch := self._planned(late)) is None and not late:
                    if self._closed:
                        return None
                    self._changed.wait()
                    since = time.perf_counter()
                if batch is not None:
                    self._busy += 1
                    if self._queue and self._busy < self.count:
                        self._start()
                        self._changed.notify()
                    alone = self._busy == 1 and not self._queue
            deliver(late)
            if batch is not None:
                return batch, alone, since

    def _planned(self, late: list[Request]) -> Batch | None:
        """Take the next batch, as `_taken` does. If that fails, what waits fails: texts may be lost between plans."""
        try:
            return self._taken(late)
        except Exception as error:  # memory is short
            self._queue, waiting = Queue(), [each for some in self._open.values() for each in some if each.waiting]
            for request in waiting:
                request.waiting = 0
                late += self._failed(request, error)
            return None

    def _taken(self, late: list[Request]) -> Batch | None:
        """Take the next batch, without requests that are late, which are added to `late`; None if nothing waits."""
        idle, now = self.count - self._busy, time.monotonic()
        while (batch := self._queue.waiting(idle, self.budget)) is not None:
            requests = [request for request, _ in batch.by_request()]
            overdue = [request for request in requests if now >= request.deadline]
            if not overdue:
                for request in requests:
                    request.started = request.started or now
                return self._queue.take(idle, self.budget)
            for request in overdue:
                self._counters.late += 1
                seconds = request.deadline - request.submitted
                late += self._failed(request, DeadlineExceededError(f"not computed within {seconds:.1f} s"))
        return None

    def _compute(self, batch: Batch, alone: bool) -> bool:
        """Compute a batch, or its texts one by one if it fails; return whether it did not fail."""
        try:
            vectors = batch.run(alone)
        except Exception as error:
            if len(batch.items) == 1:
                self._fail(batch, error)
            else:  # a text must not fail the requests that share its batch
                for part in batch.singles():
                    if not part.items[0].request.gone:
                        self._compute(part, alone)
            return False
        try:
            self._give(batch, vectors)
        except Exception as error:  # memory is short
            self._fail(batch, error)
        return True

    def _fail(self, batch: Batch, error: Exception) -> None:
        """Give the requests of a batch an error."""
        with self._changed:
            ended = [each for request, _ in batch.by_request() for each in self._failed(request, error)]
        deliver(ended)

    def _give(self, batch: Batch, vectors: NDArray[np.float32]) -> None:
        """Give vectors to their requests, and deliver those that are complete."""
        finite = np.all(np.isfinite(vectors), axis=1)
        failed: list[Request] = []
        complete: list[Request] = []
        with self._changed:
            self._counters.add(batch)
            for request, rows in batch.by_request():
                if request.gone:
                    continue
                try:
                    indices = [batch.items[row].index for row in rows]
                    if not finite[rows].all():
                        bad = indices[int(np.argmin(finite[rows]))]
                        failed += self._failed(request, not_finite("texts", bad))
                    elif request.keep(indices, vectors[rows]):
                        self._settle(request)
                        complete.append(request)
                except Exception as error:  # memory is short
                    failed += self._failed(request, error)
        for request in complete:
            request.complete()
        deliver(failed + complete)

    def _failed(self, request: Request, error: Exception) -> list[Request]:
        """Give a request an error and forget its texts; return it to be delivered, or nothing if it had its outcome."""
        self._queue.drop(request)
        if request.gone:
            return []
        self._settle(request)
        request.error = error
        return [request]

    def _settle(self, request: Request) -> None:
        """Note that a request has its outcome, or that its caller has gone; it may never have been queued."""
        request.gone = True
        others = self._open.get(request.runner, set())
        others.discard(request)
        if not others:
            self._open.pop(request.runner, None)
            self._emptied.notify_all()

    def _abandoned(self, runners: Iterable[TokenRunner]) -> list[Request]:
        """Fail the requests that wait; return them to be delivered."""
        waiting = [request for runner in runners for request in self._open.get(runner, ()) if request.waiting]
        why = "the batcher was closed before this was computed"
        return [ended for request in waiting for ended in self._failed(request, WhitenError(why))]
