"""Batch the texts of many callers: `Batcher` for threads, `AsyncEncoder` for the tasks of event loops."""

import asyncio
import math
import time
from collections.abc import Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack

from numpy.typing import NDArray

from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import UsageError, as_iterable, needing
from whiten_runtime.inference.options import QueuedArguments
from whiten_serving.encoder_queue import EncoderQueue, ignore
from whiten_serving.requests import BatcherStats, DeadlineExceededError, Request, moment_in

if TYPE_CHECKING:
    from starlette.applications import Starlette


class _Queued:
    """Holds what `Batcher` and `AsyncEncoder` share."""

    _queue: EncoderQueue

    def __init__(
        self,
        encoder: Encoder | str | Path,
        *,
        lanes: int | None = None,
        max_wait: float | None = None,
        shared_with: Self | None = None,
    ) -> None:
        scheduler = None if shared_with is None else shared_with._queue.scheduler
        self._queue = EncoderQueue(encoder, scheduler, lanes=lanes, max_wait=max_wait)

    def stats(self) -> BatcherStats:
        """Return what waits and runs now, and what was done so far, by all that share the lanes."""
        return self._queue.scheduler.stats()

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise UsageError(f"a {name} has threads, which cannot be pickled; pickle its encoder, or the path")


class Batcher(_Queued):
    """Embeds texts of many callers with one encoder, in batches that callers share.

    Use it from any number of threads: Flask, gRPC, Celery. It has no event loop; `AsyncEncoder` is for those that have.
    A text's vector does not depend on the other texts of its batch. Calls take turns: a batch begins with the next text
    of the call whose turn it is, and takes others of its length from those that wait next. A turn lasts until as many
    tokens of the call are taken as a full batch has. So a short call waits for so many of each long one, not for all of
    it. Equal texts of a call are computed once. No call waits for others to come. A batch ends early when all of its
    calls were cancelled. After a fork, make one in each child.

    Args:
        encoder: an encoder, which stays the caller's to close; or the bundle of one that is opened and closed here.
        lanes: number of batches that run at once; None for the encoder's own number, as many as it has threads, or one
            for layer 0 and for a graph of more than 1 GiB. More than that number has no effect.
        max_wait: seconds of work that may go before a call, at the rates measured so far, besides the bound of
            2,097,152 tokens that may wait; None for that bound alone.
        shared_with: another batcher, with which this one shares lanes, the queue and its bounds: several models then
            share the processor. Of these batchers, make that with the most lanes first. The other options are left
            out, and those of the other batcher hold.

    Raises:
        UsageError: a number is out of range.
        WhitenError: the bundle cannot be opened, as in `Encoder`.
    """

    @property
    def encoder(self) -> Encoder:
        """Return the encoder."""
        return self._queue.encoder

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
            timeout: seconds from now after which no lane takes the texts any more; None for no end. The future ends
                when a lane comes to the texts, not before.
            options: the keyword arguments of `Encoder.encode`, but `batch_size`: batches are the lanes'.

        Returns:
            A future of what `Encoder.encode` returns: float32 [n, k], or [k] for a single string; it raises
            DeadlineExceededError if the time was over. `cancel` keeps texts from being computed.

        Raises:
            OverloadedError: too much work waits already.
            TooManyTokensError: there are more than 1,048,576 tokens.
            TextError: an item is not a string; the message has its index.
            TooLongError: a text is too long and `truncate` is False.
            UsageError: an option cannot be used as given.
            ClosedError: the batcher or the encoder is closed.
        """
        until = moment_in("timeout", timeout)
        self._queue.check_room()
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

    def close(self, wait: bool = True) -> None:
        """Take no more requests, and compute what waits; close the encoder if it was opened here.

        If it shares lanes, it waits for its own requests only, and leaves the lanes open. It does not wait if a
        future's callback calls it. When the interpreter ends, what waits still is not computed.

        Args:
            wait: False fails what waits, and returns when the running batches end.
        """
        self._queue.close(wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class AsyncEncoder(_Queued):
    """Embeds texts of many tasks with one encoder, in batches that they share. It is a `Batcher` for event loops.

    Its arguments are those of `Batcher`, but that it shares lanes with another `AsyncEncoder`.

    Raises:
        UsageError: a number is out of range.
        WhitenError: the bundle cannot be opened, as in `Encoder`.
    """

    async def encode(
        self,
        texts: str | Iterable[str],
        *,
        timeout: float | None = None,
        **options: Unpack[QueuedArguments],
    ) -> NDArray[Any]:
        """Embed texts. Cancelling the task keeps texts from being computed.

        Args:
            texts: one text, or several, as in `Encoder.encode`.
            timeout: seconds after which DeadlineExceededError is raised and waiting texts are dropped; None for no end.
            options: the keyword arguments of `Encoder.encode`, but `batch_size`: batches are the lanes'.

        Returns:
            What `Encoder.encode` returns: float32 [n, k], or [k] for a single string; it is within 1e-6 of the norm.

        Raises:
            OverloadedError: too much work waits already.
            TooManyTokensError: there are more than 1,048,576 tokens.
            DeadlineExceededError: the vectors were not there in time.
            TextError: an item is not a string; the message has its index.
            TooLongError: a text is too long and `truncate` is False.
            UsageError: an option cannot be used as given.
            ClosedError: the batcher or the encoder is closed.
        """
        until = moment_in("timeout", timeout)
        self._queue.check_room()
        items = texts if isinstance(texts, str) else list(as_iterable(texts))  # their TimeoutError is theirs
        limit = asyncio.timeout(None if until == math.inf else until - time.monotonic())
        try:
            async with limit:
                request = await self._queue.request_in_loop(items, **options)
                request.deadline = until
                return await self._queue.answer(request)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceededError(f"not computed within {timeout:.3g} s") from None

    def asgi_app(self, name: str | None = None, **options: Any) -> "Starlette":
        """Return an ASGI application with the routes of OpenAI, TEI and Ollama, to mount in FastAPI or Starlette.

        Closing this encoder stays the caller's.

        Args:
            name: name of the model in requests and answers; None for that of the bundle.
            options: settings of the application, such as `api_keys` and `max_texts`: docs/reference/commands.md.

        Raises:
            UsageError: an option is unknown, or cannot be used as given.
            MissingPackageError: a package of the extra `serve` is missing.
        """
        with needing("serve"):
            from whiten_serving.http.app import check_paths, make_app
            from whiten_serving.http.models import Models, ServedModel
            from whiten_serving.http.service import Service
            from whiten_serving.settings import Settings

        settings = Settings.of(options)
        models = Models([ServedModel(name or self._queue.encoder.manifest.name, self._queue)])
        check_paths(models.names, settings.root_path)
        return make_app(Service(models, settings))

    async def close(self, wait: bool = True) -> None:
        """Take no more requests, and compute what waits; close the encoder if it was opened here.

        Args:
            wait: False fails what waits, and returns when the running batches end.
        """
        await asyncio.to_thread(self._queue.close, wait)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()


def _set_outcome(future: "Future[NDArray[Any]]", request: Request) -> None:
    """Give a request's outcome to a future, unless that was cancelled meanwhile."""
    request.done = ignore  # it holds the future, which holds the request: memory would wait for the collector
    with suppress(InvalidStateError):
        if request.result is not None:
            future.set_result(request.result)
        else:
            future.set_exception(request.error)
