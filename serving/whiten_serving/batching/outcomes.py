"""Compute batches, and give their requests vectors or errors."""

from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.inference.vectors import not_finite, rows_not_finite
from whiten_serving.batching.batch import Batch
from whiten_serving.batching.counters import Counters
from whiten_serving.batching.delivery import deliver
from whiten_serving.batching.open_requests import OpenRequests
from whiten_serving.batching.queue import Queue
from whiten_serving.batching.request import Request


class Outcomes:
    """Gives each request one outcome, and tells its caller.

    Args:
        lock: the lanes' lock, which guards the others.
        queue: requests of which texts wait.
        still_open: requests without an outcome.
        counters: what is counted.
    """

    def __init__(
        self,
        lock: AbstractContextManager[object],
        queue: Queue,
        still_open: OpenRequests,
        counters: Counters,
    ) -> None:
        self._lock = lock
        self._queue = queue
        self._open = still_open
        self._counters = counters

    def compute(self, batch: Batch, alone: bool) -> bool:
        """Compute a batch, or its texts one by one if it fails; return whether it did not fail.

        Args:
            batch: the batch.
            alone: whether no other batch runs meanwhile.
        """
        try:
            vectors = batch.run(alone)
        except Exception as error:
            if len(batch.items) == 1:
                self._fail(batch, error)
            else:  # a text must not fail the requests that share its batch
                for part in batch.singles():
                    if not part.items[0].request.gone:
                        self.compute(part, alone)
            return False
        try:
            self._give(batch, vectors)
        except Exception as error:  # memory is short
            self._fail(batch, error)
        return True

    def failed(self, request: Request, error: Exception) -> list[Request]:
        """Give a request an error and forget its texts; return it to be delivered, or nothing if it had its outcome.

        Callers hold the lock.
        """
        self._queue.drop(request)
        if request.gone:
            return []
        self._open.settle(request)
        request.error = error
        return [request]

    def _fail(self, batch: Batch, error: Exception) -> None:
        """Give the requests of a batch an error."""
        with self._lock:
            ended = [each for request, _ in batch.by_request() for each in self.failed(request, error)]
        deliver(ended)

    def _give(self, batch: Batch, vectors: NDArray[np.float32]) -> None:
        """Give vectors to their requests, and deliver those that are complete."""
        bad = rows_not_finite(vectors)
        failed: list[Request] = []
        complete: list[Request] = []
        with self._lock:
            self._counters.add(batch)
            for request, rows in batch.by_request():
                if request.gone:
                    continue
                try:
                    if bad and (lost := bad.intersection(rows)):
                        failed += self.failed(request, not_finite("texts", batch.items[min(lost)].index))
                    elif request.keep([batch.items[row].index for row in rows], vectors[rows]):
                        self._open.settle(request)
                        complete.append(request)
                except Exception as error:  # memory is short
                    failed += self.failed(request, error)
        for request in complete:
            request.complete()
        deliver(failed + complete)
