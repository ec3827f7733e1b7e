"""Batch the texts of many callers on threads: `Batcher`."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.records import VectorPrecision
from whiten_runtime.errors import UsageError
from whiten_runtime.opened.encoder import Encoder
from whiten_serving.requests import MAX_QUEUE_TOKENS, Finish, Request, Stats, moment_in
from whiten_serving.scheduler import Scheduler

_FINISHERS = 256
"""Number of different options that are remembered."""


class Batcher:
    """Embeds texts of many callers with one encoder, in batches that callers share.

    Use it from any number of threads: Flask, gRPC, Celery. It has no event loop; `AsyncEncoder` is for those that have.
    A text's vector does not depend on the other texts of its batch. What a call asks for waits in a queue, first in
    first out; a batch begins with the oldest text, and takes others of its length from those that wait next. No request
    waits for others to come. After a fork, make one in each child.

    Args:
        encoder: an encoder, which stays the caller's to close; or the bundle of one that is opened and closed here.
        lanes: number of batches that run at once; None for the encoder's own number, as many as it has threads, or one
            for layer 0 and for a graph of more than 1 GiB. More than that number has no effect.
        max_batch_tokens: number of padded tokens of a batch at most; None for the encoder's own number.
        max_queue_tokens: number of tokens that may wait.
        max_wait: seconds of work that may wait, at the rate measured so far; None for no bound but that of tokens.
        scheduler: scheduler of another batcher, in place of one of its own: several models then share the processor,
            the queue and its bounds. Of these batchers, make that with the most lanes first. The other options are left
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
        max_batch_tokens: int | None = None,
        max_queue_tokens: int = MAX_QUEUE_TOKENS,
        max_wait: float | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        self._owned = not isinstance(encoder, Encoder)
        self.encoder = encoder if isinstance(encoder, Encoder) else Encoder(encoder)
        try:
            self.runner = self.encoder.token_runner()
            self.scheduler = scheduler or Scheduler(
                self.runner.schedule.workers if lanes is None else lanes,
                max_batch_tokens,
                max_queue_tokens=max_queue_tokens,
                max_wait=max_wait,
            )
        except BaseException:
            if self._owned:
                self.encoder.close()
            raise
        self._shares = scheduler is not None
        self._finish = lru_cache(_FINISHERS, typed=True)(self._finisher)  # checking options takes its time

    def submit(
        self,
        texts: str | Iterable[str],
        *,
        timeout: float | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = True,
        truncate_dim: int | None = None,
        normalize_embeddings: bool = False,
        precision: VectorPrecision = "float32",
    ) -> "Future[NDArray[Any]]":
        """Tokenise texts in the caller's thread, queue them, and return a future of their vectors.

        All arguments but `timeout` are those of `Encoder.encode`.

        Args:
            texts: one text, or several, as in `Encoder.encode`.
            timeout: seconds from now after which the texts are not computed any more; None for no end. A batch that
                runs already is not interrupted. The future ends when a lane comes to the texts, not before.

        Returns:
            A future of what `Encoder.encode` returns: float32 [n, k], or [k] for a single string; it raises
            DeadlineExceededError if the time was over. `cancel` keeps texts that wait from being computed.

        Raises:
            OverloadedError: too much work waits already; nothing was tokenised or queued.
            TextError: an item is not a string; the message has its index.
            TooLongError: a text is too long and `truncate` is False.
            UsageError: an option cannot be used as given.
            WhitenError: the batcher or the encoder is closed.
        """
        until = moment_in("timeout", timeout)
        self.scheduler.check_room()
        future: Future[NDArray[Any]] = Future()
        request = self.request(
            texts,
            prompt_name=prompt_name,
            prompt=prompt,
            truncate=truncate,
            truncate_dim=truncate_dim,
            normalize_embeddings=normalize_embeddings,
            precision=precision,
        )
        request.deadline = until
        self.queue(request, lambda done: _set_outcome(future, done))
        future.add_done_callback(lambda done: self._depart(done, request))
        return future

    def request(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = True,
        **finishing: Any,
    ) -> Request:
        """Tokenise texts, by the options of `submit`, and return a request to `queue`."""
        try:
            finish = self._finish(isinstance(texts, str), **finishing)
        except TypeError:  # an option cannot be hashed: it is refused
            finish = self._finisher(isinstance(texts, str), **finishing)
        tokenized = self.encoder.tokenized(texts, prompt_name=prompt_name, prompt=prompt, truncate=truncate)
        return Request(self.runner, tokenized, finish, _nothing)

    def queue(self, request: Request, done: Callable[[Request], object], wake: bool = True) -> None:
        """Queue a request of `request`, and have a function called in a lane when it has its outcome.

        Without `wake`, call `wake` of the scheduler afterwards.

        Raises:
            OverloadedError: too much work waits already.
            WhitenError: the batcher is closed.
        """
        if request.texts.ids:
            request.done = done
            self.scheduler.submit(request, wake)
        else:
            self.scheduler.check_open(request.runner)
            request.result = request.finish(np.empty((0, self.encoder.dimension), np.float32))
            done(request)

    def _finisher(self, single: bool, **options: Any) -> Finish:
        """Return what makes a caller's vectors of those of the graph."""
        made = self.encoder.finisher(**options)
        return (lambda vectors: made(vectors)[0]) if single else made

    def _depart(self, future: "Future[NDArray[Any]]", request: Request) -> None:
        """Keep a request from being computed if its future was cancelled, and tell who waits for that future."""
        if future.cancelled():
            self.scheduler.cancel(request)
            future.set_running_or_notify_cancel()

    def stats(self) -> Stats:
        """Return what waits and runs now, and what was done so far, by all batchers that share the scheduler."""
        return self.scheduler.stats()

    def close(self, wait: bool = True) -> None:
        """Take no more requests, and compute what waits; close the encoder if it was opened here.

        Of a shared scheduler, waits for the requests of this batcher only, and leaves it open. It does not wait if a
        future's callback calls it. When the interpreter ends, what waits still is not computed.

        Args:
            wait: False fails what waits, and returns when the running batches end.
        """
        self.scheduler.end(self.runner, wait) if self._shares else self.scheduler.close(wait)
        if self._owned:
            self.encoder.close()

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
    request.done = _nothing  # it holds the future, which holds the request: memory would wait for the collector
    with suppress(InvalidStateError):
        if request.result is not None:
            future.set_result(request.result)
        else:
            future.set_exception(request.error)


def _nothing(request: Request) -> None:
    pass
