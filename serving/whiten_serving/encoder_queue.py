"""An encoder with the scheduler that computes its requests: what `Batcher`, `AsyncEncoder` and the server share."""

import asyncio
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.records import VectorPrecision
from whiten_runtime.errors import UsageError, checked_texts, whole_number
from whiten_runtime.inference.embedder import DifferentTexts
from whiten_runtime.inference.options import EncodeOptions, Prompts
from whiten_runtime.opened.encoder import Encoder, embedder_of
from whiten_runtime.opened.opening import encode_options
from whiten_serving.requests import Request
from whiten_serving.scheduler import Scheduler

_OPTIONS = 256
"""Number of different options that are remembered."""

_INLINE_CHARACTERS = 4096
"""Characters up to which texts are tokenised in the event loop's thread: it takes less than a millisecond, and handing
them to another thread would take about as long."""

_QUICK = ("float32", None, "binary", "ubinary")
"""Precisions whose options are checked in the event loop; others need the ranges of all coordinates."""

_TEXT = 8
"""Characters that a text counts at least: 100,000 empty ones take their time too."""


class EncoderQueue:
    """Makes requests of texts, and queues them for the lanes of a scheduler, its own or one that models share.

    Args:
        encoder: an encoder, which stays the caller's to close; or the bundle of one that is opened and closed here.
        scheduler: scheduler that other encoders use too; None for one of the further options, as in `Batcher`.
    """

    def __init__(
        self,
        encoder: Encoder | str | Path,
        scheduler: Scheduler | None = None,
        *,
        lanes: int | None = None,
        max_wait: float | None = None,
    ) -> None:
        self._owned = not isinstance(encoder, Encoder)
        self.encoder = encoder if isinstance(encoder, Encoder) else Encoder(encoder)
        try:
            self._embedder = embedder_of(self.encoder)
            self.runner = self._embedder.engine
            self.runner.check_open()
            self.runner.create_sessions()
            self.has_ranges = _has_ranges(self.encoder)
            self.scheduler = scheduler or Scheduler(
                self.runner.schedule.workers if lanes is None else lanes, max_wait=max_wait
            )
        except BaseException:
            if self._owned:
                self.encoder.close()
            raise
        self._shares = scheduler is not None
        self.scheduler.begin(self.runner)
        if not self._shares:
            weakref.finalize(self, self.scheduler.abandon).atexit = False
        self._checked = partial(_checked, self.encoder)
        self._options = lru_cache(_OPTIONS, typed=True)(self._checked)  # checking options takes its time
        self._prompts = Prompts.of(self.encoder.manifest)

    def request(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = True,
        max_characters: int | None = None,
        **finishing: Any,
    ) -> Request:
        """Tokenise texts, by the options of `Batcher.submit`, and return a request to `put`."""
        try:
            options = self._options(**finishing)
        except TypeError:  # an option cannot be hashed: it is refused
            options = self._checked(**finishing)
        text = self._prompts.resolve(prompt_name, prompt)
        options = replace(options, prompt=text, truncate=truncate, finite=False)  # the scheduler checks each batch
        if max_characters is not None:
            options = replace(options, max_characters=whole_number("max_characters", max_characters, 1))
        items = [texts] if isinstance(texts, str) else checked_texts(texts)
        if isinstance(texts, str):
            tokenized = self._embedder.tokenize(items, options)
            return Request(self.runner, tokenized, lambda vectors: options.finish(vectors)[0], ignore)
        different = DifferentTexts.of(items)
        tokenized = self._embedder.tokenize(items if different is None else different.texts, options, 0, different)
        places = None if different is None else different.places
        return Request(self.runner, tokenized, options.finish, ignore, places=places)

    async def request_in_loop(self, texts: str | list[str], **options: Any) -> Request:
        """Return `request` of texts, one or a list, which are tokenised in another thread if they are long."""
        short = _characters(texts, options.get("prompt")) <= _INLINE_CHARACTERS
        if short and options.get("precision", "float32") in _QUICK:
            return self.request(texts, **options)
        return await asyncio.to_thread(self.request, texts, **options)

    def put(self, request: Request, done: Callable[[Request], object], wake: bool = True) -> None:
        """Queue a request of `request`, and have a function called in a lane when it has its outcome.

        Without `wake`, call `wake` of the scheduler afterwards.

        Raises:
            OverloadedError: too much work waits already.
            TooManyTokensError: the request has more tokens than can be computed by its deadline.
            ClosedError: the scheduler is closed.
        """
        if request.texts.ids:
            request.done = done
            self.scheduler.submit(request, wake)
        else:
            self.scheduler.check_open(request.runner)
            request.result = request.finish(np.empty((0, self.encoder.dimension), np.float32))
            done(request)

    async def answer(self, request: Request) -> NDArray[Any]:
        """Queue a request and wait for its vectors; the caller cancels this at the deadline."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()

        def done(request: Request) -> None:
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_wake, answered)

        try:
            self.put(request, done, wake=False)
            loop.call_soon(self.scheduler.compute_or_wake)  # after other tasks that are ready: they share a batch
            await answered
        finally:
            self.scheduler.cancel(request)
        if request.error is not None:
            raise request.error
        assert request.result is not None
        return request.result

    def close(self, wait: bool = True) -> None:
        """Take no more requests, and compute what waits or fail it; close the encoder if it was opened here.

        Of a shared scheduler, this waits for the requests of this encoder only, and leaves the scheduler open.
        """
        self.scheduler.end(self.runner, wait) if self._shares else self.scheduler.close(wait)
        if self._owned:
            self.encoder.close()


def _has_ranges(encoder: Encoder) -> bool:
    """Return whether a bundle stores ranges of int8, which are read now: its files may be replaced later."""
    try:
        encoder.ranges()
    except UsageError:
        return False
    return True


def _checked(
    encoder: Encoder,
    normalize_embeddings: bool = False,
    truncate_dim: int | None = None,
    precision: VectorPrecision | None = "float32",
    ranges: ArrayLike | None = None,
) -> EncodeOptions:
    return encode_options(
        encoder,
        prompt="",
        normalize_embeddings=normalize_embeddings,
        truncate_dim=truncate_dim,
        precision=precision,
        ranges=ranges,
    )


def ignore(request: Request) -> None:
    """Do nothing with a request that has its outcome."""


def _wake(answered: "asyncio.Future[None]") -> None:
    if not answered.done():
        answered.set_result(None)


def _characters(texts: object, prompt: str | None) -> int:
    """Return the number of characters of texts and prompts, about; items that are none are refused later."""
    items = texts if isinstance(texts, list) else [texts]
    extra = len(prompt) if isinstance(prompt, str) else 0
    return sum(max(len(text) + extra, _TEXT) for text in items if isinstance(text, str))
