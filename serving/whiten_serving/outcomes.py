"""Compute batches, and give each request its vectors or an error: `Outcomes`."""

import copy
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Condition, RLock, Thread, current_thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import NOT_FINITE, NoVectorError, RunError, one_line
from whiten_runtime.inference.engine import Engine
from whiten_runtime.inference.vectors import rows_not_finite
from whiten_serving.queue import Queue
from whiten_serving.requests import (
    Batch,
    BatcherCounters,
    DeadlineExceededError,
    OverloadedError,
    Request,
    TooManyTokensError,
)

_log = logging.getLogger("whiten.serving")


class Outcomes:
    """Gives requests their outcomes, and tells their callers. The scheduler's lock guards what it holds."""

    def __init__(self, lock: RLock, queue: Queue) -> None:
        self.counters = BatcherCounters()
        self.open: set[Request] = set()  # requests of whose outcome nobody was told
        self.calling: list[Thread] = []  # threads in callers' functions, which must not wait for others to be told
        self._changed = Condition(lock)  # for those who wait for an end
        self._queue = queue

    def of(self, runner: Engine) -> list[Request]:
        """Return the requests of a runner of whose outcome nobody was told; callers hold the lock."""
        return [request for request in self.open if request.runner is runner]

    def wait_for(self, requests: list[Request]) -> None:
        """Wait until all of these requests have ended."""
        with self._changed:
            self._changed.wait_for(lambda: self.open.isdisjoint(requests))

    def compute(self, batch: Batch, alone: bool, on_batch: Callable[[Batch], object]) -> bool:
        """Compute a batch, or its texts one by one if it fails; return whether it did not fail."""
        try:
            vectors = batch.run(alone)
        except Exception as error:
            if batch.texts == 1:
                ((request, (index,)),) = batch.parts.items()
                self.fail([request], error.moved(index) if isinstance(error, NoVectorError) else error)
                return False
            for request, indices in batch.parts.items():  # a text must not fail the requests that share its batch
                for index in indices:
                    if not request.finished:
                        self.compute(Batch.of([(request, index)]), alone, on_batch)
            return False
        counted = batch.counted()
        self._deliver(batch, vectors, counted)
        if counted.texts:
            self._call(on_batch, counted)
        return True

    def _deliver(self, batch: Batch, vectors: NDArray[np.float32], counted: Batch) -> None:
        """Give vectors to their requests, count them, and tell the callers of those that are complete."""
        bad = rows_not_finite(vectors)
        finished, end = list[Request](), 0
        try:
            with self._changed:
                counters = self.counters
                counters.texts += counted.texts
                counters.tokens += counted.tokens
                counters.padding += counted.padding
                counters.batches += counted.texts > 0
                for request, indices in batch.parts.items():
                    start, end = end, end + len(indices)
                    if request.finished:
                        continue
                    lost = [index for row, index in enumerate(indices, start) if row in bad]
                    if lost or request.store(indices, vectors[start:end].copy()):
                        finished.append(request)
                        self.set(request, NoVectorError(dict.fromkeys(lost, NOT_FINITE)) if lost else None)
        finally:  # even if memory is short for the others
            for request in finished:
                request.complete()
            self.tell(finished)

    def fail(self, requests: Iterable[Request], error: Exception) -> None:
        """Give requests that have no outcome an error, each its own: whoever raises it adds a traceback."""
        with self._changed:
            failed = [request for request in requests if not request.finished]
            for number, request in enumerate(failed):
                self.set(request, _copy(error) if number else error)
        self.tell(failed)

    def set(self, request: Request, error: Exception | None = None) -> None:
        """Note that a request has its outcome, or that its caller has gone; callers hold the lock."""
        if isinstance(error, NoVectorError) and request.places is not None:
            error = error.placed(request.places)
        request.finished, request.error = True, error
        self._queue.drop(request)

    def expire(self, request: Request) -> None:
        """Note that a request was not computed by its deadline; callers hold the lock."""
        self.counters.expired += 1
        seconds = request.deadline - request.submitted
        self.set(request, DeadlineExceededError(f"not computed within {seconds:.1f} s"))

    @contextmanager
    def counting_refusals(self) -> Iterator[None]:
        """Count a request that is refused meanwhile; callers hold the lock."""
        try:
            yield
        except (OverloadedError, TooManyTokensError):
            self.counters.rejected += 1
            raise

    def tell(self, requests: list[Request]) -> None:
        """Tell callers that their requests have outcomes."""
        for request in requests:
            self._call(request.done, request)
        if requests:
            with self._changed:
                self.forget(requests)

    def _call(self, function: Callable[[Any], object], value: object) -> None:
        """Call a caller's function in a lane, and log what it raises, which must not end the lane."""
        self.calling.append(current_thread())
        try:
            function(value)
        except BaseException:
            _log.exception("a function that was called with what a lane computed raised; the lane goes on")
        finally:
            self.calling.remove(current_thread())

    def forget(self, requests: list[Request]) -> None:
        """Let those who wait for the end of requests go on; callers hold the lock."""
        self.open.difference_update(requests)
        self._changed.notify_all()


def _copy(error: Exception) -> Exception:
    """Return an error like another one; one in its words where its class cannot be copied."""
    try:
        copied = copy.copy(error)
    except Exception:
        copied = RunError(one_line(error))
    copied.__cause__ = error
    return copied
