"""Batch the texts of many callers on threads: `Batcher`."""

from collections.abc import Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.bundle.manifest import VectorPrecision
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import UsageError
from whiten_runtime.inference.batching import Schedule
from whiten_serving.batching.bounds import MAX_QUEUE_TOKENS, Bounds, moment_in
from whiten_serving.batching.counters import Stats
from whiten_serving.batching.lanes import Lanes
from whiten_serving.batching.request import Deliver, Finish, Request

_FINISHERS = 256
"""Number of different options that are remembered."""


class Batcher:
    """Embeds texts of many callers with one encoder, in batches that callers share.

    Use it from any number of threads: Flask, gRPC, Celery. It has no event loop; `AsyncEncoder` is for those that have.
    A text's vector does not depend on the other texts of its batch. What a call asks for waits in a queue, first in
    first out; a batch begins with the oldest text, and takes others of its length from those that wait next. No request
    waits for others to come.

    Args:
        encoder: an encoder, which stays the caller's to close; or the bundle of one that is opened and closed here.
        lanes: number of batches that run at once; None for the encoder's own number, as many as it has threads.
        max_batch_tokens: number of padded tokens of a batch at most; None for the encoder's own number.
        max_queue_tokens: number of tokens that may wait.
        max_wait: seconds of work that may wait, at the rate measured so far; None for no bound but that of tokens.
        shared: lanes of another batcher, in place of lanes of its own: several models then share the processor, the
            queue and its bounds. The other options are left out, and those of the other batcher hold.

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
        shared: Lanes | None = None,
    ) -> None:
        bounds = Bounds(max_queue_tokens, max_wait)
        self._owned = not isinstance(encoder, Encoder)
        self.encoder = encoder if isinstance(encoder, Encoder) else Encoder(encoder)
        try:
            self._runner = self.encoder.token_runner()
            self.lanes = shared or _lanes_for(self._runner.schedule, lanes, max_batch_tokens, bounds)
        except BaseException:
            if self._owned:
                self.encoder.close()
            raise
        self._shares = shared is not None
        self._finishers: dict[tuple[object, ...], Finish] = {}

    def submit(
        self,
        texts: str | Iterable[str],
        deadline: float | None = None,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = True,
        truncate_dim: int | None = None,
        normalize_embeddings: bool = False,
        precision: VectorPrecision = "float32",
    ) -> "Future[NDArray[Any]]":
        """Tokenise texts in the caller's thread, queue them, and return a future of their vectors.

        Args:
            texts: one text, or several, as in `Encoder.encode`.
            deadline: seconds from now after which the texts are not computed any more; None for no deadline. A batch
                that runs already is not interrupted. The future ends when a lane comes to the texts, not before.
            prompt_name: name of a prompt, as in `Encoder.encode`.
            prompt: the prompt itself, as in `Encoder.encode`.
            truncate: truncate long texts instead of raising.
            truncate_dim: number of leading coordinates to keep, as in `Encoder.encode`.
            normalize_embeddings: divide each vector by its L2 norm.
            precision: precision of the numbers, as in `Encoder.encode`.

        Returns:
            A future of what `Encoder.encode` returns: float32 [n, k], or [k] for a single string; it raises
            DeadlineExceededError if the deadline passed. `cancel` keeps texts that wait from being computed.

        Raises:
            OverloadedError: too much work waits already; nothing was tokenised or queued.
            TextError: an item is not a string; the message has its index.
            TooLongError: a text is too long and `truncate` is False.
            UsageError: an option cannot be used as given.
            WhitenError: the batcher or the encoder is closed.
        """
        self.lanes.check_room()
        future: Future[NDArray[Any]] = Future()
        request = self.request(
            texts,
            lambda ended: _settle(future, ended[0]),
            deadline,
            prompt_name=prompt_name,
            prompt=prompt,
            truncate=truncate,
            truncate_dim=truncate_dim,
            normalize_embeddings=normalize_embeddings,
            precision=precision,
        )
        self.queue(request)
        future.add_done_callback(lambda done: self._depart(done, request))
        return future

    def request(
        self,
        texts: str | Iterable[str],
        deliver: Deliver,
        deadline: float | None = None,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = True,
        truncate_dim: int | None = None,
        normalize_embeddings: bool = False,
        precision: VectorPrecision = "float32",
    ) -> Request:
        """Tokenise texts and return a request to `queue`, which tells its tokens and, once computed, its times.

        Args:
            texts: one text, or several.
            deliver: function that gets the request when it has its result or error.
            deadline: seconds from now.
            prompt_name: name of a prompt.
            prompt: the prompt itself.
            truncate: truncate long texts instead of raising.
            truncate_dim: number of leading coordinates to keep.
            normalize_embeddings: divide each vector by its L2 norm.
            precision: precision of the numbers.

        Raises:
            WhitenError: as in `submit`.
        """
        until = moment_in("deadline", deadline)
        finish = self._finish(truncate_dim, normalize_embeddings, precision, isinstance(texts, str))
        tokenized = self.encoder.tokenized(texts, prompt_name=prompt_name, prompt=prompt, truncate=truncate)
        return Request(self._runner, tokenized, finish, deliver, until)

    def queue(self, request: Request) -> None:
        """Queue a request of `request`.

        Raises:
            OverloadedError: too much work waits already.
            WhitenError: the batcher is closed.
        """
        if not request.texts.ids:
            self.lanes.check_open(request.runner)
            request.result = request.finish(np.empty((0, self.encoder.dimension), np.float32))
            request.deliver([request])
        else:
            self.lanes.submit(request)

    def cancel(self, request: Request) -> None:
        """Keep the texts of a request that wait from being computed; nothing is delivered any more."""
        self.lanes.cancel(request)

    def _finish(self, truncate_dim: int | None, normalize: bool, precision: VectorPrecision, single: bool) -> Finish:
        """Return what makes a caller's vectors; the same for the same options, since checking them takes its time."""
        key = type(truncate_dim), truncate_dim, bool(normalize), precision, single
        simple = isinstance(truncate_dim, int | None) and isinstance(precision, str)
        found = self._finishers.get(key) if simple else None
        if found is None:
            made = self.encoder.finisher(truncate_dim=truncate_dim, normalize_embeddings=normalize, precision=precision)
            found = (lambda vectors: made(vectors)[0]) if single else made
            if simple and len(self._finishers) < _FINISHERS:
                self._finishers[key] = found
        return found

    def _depart(self, future: "Future[NDArray[Any]]", request: Request) -> None:
        """Keep a request from being computed if its future was cancelled, and tell who waits for that future."""
        if future.cancelled():
            self.cancel(request)
            future.set_running_or_notify_cancel()

    def stats(self) -> Stats:
        """Return what waits and runs now, and what was done so far; of shared lanes, for all that share them."""
        return self.lanes.stats()

    def close(self, wait: bool = True) -> None:
        """Take no more requests, and compute what waits; close the encoder if it was opened here.

        Of shared lanes, waits for the requests of this batcher only, and leaves the lanes open. It does not wait if a
        future's callback calls it. When the interpreter ends, what waits still is not computed.

        Args:
            wait: False fails what waits, and returns when the running batches end.
        """
        self.lanes.end(self._runner, wait) if self._shares else self.lanes.close(wait)
        if self._owned:
            self.encoder.close()

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"a {type(self).__name__} has threads, which cannot be pickled; pickle its encoder, or the path"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _lanes_for(schedule: Schedule, lanes: int | None, max_batch_tokens: int | None, bounds: Bounds) -> Lanes:
    """Return lanes with an encoder's own numbers where None is given."""
    count = schedule.workers if lanes is None else lanes
    return Lanes(count, schedule.budget if max_batch_tokens is None else max_batch_tokens, bounds)


def _settle(future: "Future[NDArray[Any]]", request: Request) -> None:
    """Give a request's outcome to a future, unless that was cancelled meanwhile."""
    request.deliver = _nothing  # it holds the future, which holds the request: memory would wait for the collector
    with suppress(InvalidStateError):
        if request.result is not None:
            future.set_result(request.result)
        else:
            future.set_exception(request.error)


def _nothing(ended: object) -> None:
    pass
