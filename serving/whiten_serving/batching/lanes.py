"""Compute queued requests on threads, one batch a thread at a time: `Lanes`."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from threading import Condition, RLock, Thread, current_thread
from weakref import WeakSet

from whiten_runtime.checks import whole_number
from whiten_runtime.errors import WhitenError
from whiten_runtime.inference.token_runner import TokenRunner
from whiten_serving.batching.batch import Batch
from whiten_serving.batching.bounds import Bounds
from whiten_serving.batching.counters import BatchRun, Counters, Stats
from whiten_serving.batching.delivery import call, deliver
from whiten_serving.batching.open_requests import OpenRequests
from whiten_serving.batching.outcomes import Outcomes
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
        self._changed = Condition(lock)
        self._threads: list[Thread] = []
        self._queue = Queue()
        self._rate = Rate()
        self._counters = Counters()
        self._busy = 0
        self._open = OpenRequests(lock)
        self._outcomes = Outcomes(lock, self._queue, self._open, self._counters)

    def check_open(self, runner: TokenRunner) -> None:
        """Raise WhitenError if requests of a runner are not taken any more."""
        with self._changed:
            self._check_open(runner)

    def check_room(self, tokens: int = 1) -> None:
        """Raise OverloadedError if work of so many tokens would be refused now: nothing need be tokenised for that."""
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
            self._open.add(request)
            self._changed.notify()

    def cancel(self, request: Request) -> None:
        """Forget a request whose caller has gone; does nothing if it has its outcome."""
        if request.gone:
            return
        with self._changed:
            if request in self._open:
                self._open.settle(request)
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
            abandoned = [] if wait else self._abandoned(self._open.runners)
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
                self._open.wait_for_none(runner)

    def _check_open(self, runner: TokenRunner) -> None:
        if self._closed or runner in self._ended:
            raise WhitenError("the batcher is closed; create a new one")

    def _check_room(self, tokens: int) -> None:
        """Check that work of so many tokens may wait. Numbers are read without the lock, which may be held for long."""
        waiting = self._queue.tokens
        try:
            self.bounds.check(waiting, tokens, self._rate.seconds_for(waiting, self.count))
        except OverloadedError:
            with self._changed:
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
            computed = self._outcomes.compute(batch, alone)
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
            waiting = self._open.waiting(self._open.runners)
            self._queue.clear()
            for request in waiting:
                request.waiting = 0
                late += self._outcomes.failed(request, error)
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
                late += self._outcomes.failed(request, DeadlineExceededError(f"not computed within {seconds:.1f} s"))
        return None

    def _abandoned(self, runners: Iterable[TokenRunner]) -> list[Request]:
        """Fail the requests that wait; return them to be delivered."""
        waiting = self._open.waiting(runners)
        why = "the batcher was closed before this was computed"
        return [ended for request in waiting for ended in self._outcomes.failed(request, WhitenError(why))]
