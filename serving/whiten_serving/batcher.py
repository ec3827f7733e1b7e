"""Batch the texts of many callers on threads: `Batcher`."""

from collections.abc import Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, Unpack

from numpy.typing import NDArray

from whiten_runtime.errors import UsageError
from whiten_runtime.inference.options import QueuedArguments
from whiten_runtime.opened.encoder import Encoder
from whiten_serving.encoder_queue import EncoderQueue, ignore
from whiten_serving.requests import BatcherStats, Request, moment_in


class Batcher:
    """Embeds texts of many callers with one encoder, in batches that callers share.

    Use it from any number of threads: Flask, gRPC, Celery. It has no event loop; `AsyncEncoder` is for those that have.
    A text's vector does not depend on the other texts of its batch. Calls take turns: a batch begins with the next text
    of the call whose turn it is, and takes others of its length from those that wait next. So a short call waits for a
    batch of each long one, not for all of it. Equal texts of a call are computed once. No call waits for others to
    come. After a fork, make one in each child.

    Args:
        encoder: an encoder, which stays the caller's to close; or the bundle of one that is opened and closed here.
        lanes: number of batches that run at once; None for the encoder's own number, as many as it has threads, or one
            for layer 0 and for a graph of more than 1 GiB. More than that number has no effect.
        max_wait: seconds of work that may go before a call, at the rates measured so far, besides the bound of
            1,048,576 tokens that may wait; None for that bound alone.
        shared_with: another batcher, with which this one shares lanes, the queue and its bounds: several models then
            share the processor. Of these batchers, make that with the most lanes first. The other options are left
            out, and those of the other batcher hold.

    Raises:
        UsageError: a number is out of range.
        WhitenError: the bundle cannot be opened, as in `Encoder`.
    """

    def __init__(
        self,
        encoder: Encoder | str | Path,
        *,
        lanes: int | None = None,
        max_wait: float | None = None,
        shared_with: "Batcher | None" = None,
    ) -> None:
        self._queue: EncoderQueue = EncoderQueue(
            encoder,
            None if shared_with is None else shared_with._queue.scheduler,
            lanes=lanes,
            max_wait=max_wait,
        )
        self.encoder = self._queue.encoder

    def submit(
        self,
        texts: str | Iterable[str],
        *,
        timeout: float | None = None,
        **options: Unpack[QueuedArguments],
    ) -> "Future[NDArray[Any]]":
        """Tokenise texts in the caller's thread, queue them, and return a future of their vectors.

        Args:
            texts: one text, or several, as in `Encoder.encode`.
            timeout: seconds from now after which the texts are not computed any more; None for no end. A batch that
                runs already is not interrupted. The future ends when a lane comes to the texts, not before.
            options: the keyword arguments of `Encoder.encode`, but `batch_size`: batches are the lanes'.

        Returns:
            A future of what `Encoder.encode` returns: float32 [n, k], or [k] for a single string; it raises
            DeadlineExceededError if the time was over. `cancel` keeps texts that wait from being computed.

        Raises:
            OverloadedError: too much work waits already.
            TooManyTokensError: there are more tokens than can be computed in the time, or than may wait.
            TextError: an item is not a string; the message has its index.
            TooLongError: a text is too long and `truncate` is False.
            UsageError: an option cannot be used as given.
            ClosedError: the batcher or the encoder is closed.
        """
        until = moment_in("timeout", timeout)
        self._queue.scheduler.check_room()
        future: Future[NDArray[Any]] = Future()
        request = self._queue.request(texts, **options)
        request.deadline = until
        self._queue.put(request, lambda done: _set_outcome(future, done))
        future.add_done_callback(lambda done: self._depart(done, request))
        return future

    def _depart(self, future: "Future[NDArray[Any]]", request: Request) -> None:
        """Keep a request from being computed if its future was cancelled, and tell who waits for that future."""
        if future.cancelled():
            self._queue.scheduler.cancel(request)
            future.set_running_or_notify_cancel()

    def stats(self) -> BatcherStats:
        """Return what waits and runs now, and what was done so far, by all batchers that share the lanes."""
        return self._queue.scheduler.stats()

    def close(self, wait: bool = True) -> None:
        """Take no more requests, and compute what waits; close the encoder if it was opened here.

        If it shares lanes, it waits for its own requests only, and leaves the lanes open. It does not wait if a
        future's callback calls it. When the interpreter ends, what waits still is not computed.

        Args:
            wait: False fails what waits, and returns when the running batches end.
        """
        self._queue.close(wait)

    def __reduce__(self) -> NoReturn:
        raise UsageError("a Batcher has threads, which cannot be pickled; pickle its encoder, or the path")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _set_outcome(future: "Future[NDArray[Any]]", request: Request) -> None:
    """Give a request's outcome to a future, unless that was cancelled meanwhile."""
    request.done = ignore  # it holds the future, which holds the request: memory would wait for the collector
    with suppress(InvalidStateError):
        if request.result is not None:
            future.set_result(request.result)
        else:
            future.set_exception(request.error)
