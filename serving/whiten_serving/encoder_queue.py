"""An encoder with the scheduler that computes its requests: what `Batcher`, `AsyncEncoder` and the server share."""

import asyncio
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.encoder import Encoder, embedder_of
from whiten_runtime.errors import UsageError, checked_texts
from whiten_runtime.inference.embedder import DifferentTexts, Embedder
from whiten_runtime.inference.engine import Engine, TokenizedTexts
from whiten_runtime.inference.options import EncodeOptions, QueuedArguments
from whiten_runtime.opened_bundle import encode_options
from whiten_serving.requests import Request
from whiten_serving.scheduler import Scheduler

_INLINE_CHARACTERS = 4096
"""Characters up to which texts are tokenised in the event loop's thread: it takes less than a millisecond, and handing
them to another thread would take about as long."""

_COMPARED = 64
"""Characters that are compared in the time in which one is tokenised."""

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

    def check_room(self) -> None:
        """Raise OverloadedError if even a short request would be refused now."""
        self.scheduler.check_room([self.runner])

    def request(
        self, texts: str | Iterable[str], most: int | None = None, **options: Unpack[QueuedArguments]
    ) -> Request:
        """Tokenise texts, by the options of `Batcher.submit`, and return a request to `put`.

        `most` is a number of tokens of a text, if it is less than the bundle's.
        """
        call = _Call.of(texts, self._options(**options))
        return call.request(self.runner, self._cutting(most).tokenize(call.texts, call.options, 0, call.different))

    async def request_in_loop(
        self, texts: str | list[str], client: str = "", most: int | None = None, **options: Unpack[QueuedArguments]
    ) -> Request:
        """Return `request` of texts, one or a list; long ones are tokenised in threads, in turns of the client."""
        characters, readers = _characters(texts, options.get("prompt")), self.scheduler.readers
        if characters <= _INLINE_CHARACTERS:
            return self.request(texts, most, **options)
        call = await readers.run(client, characters // _COMPARED, _Call.of, texts, self._options(**options))
        extra, embedder = len(call.options.prompt) + _TEXT, self._cutting(most)

        def tokenize(part: slice) -> TokenizedTexts:
            return embedder.tokenize(call.texts[part], call.options, part.start, call.different)

        parts = await readers.run_parts(client, [len(text) + extra for text in call.texts], tokenize)
        ids = [row for some in parts for row in some.ids]
        truncated = sum(some.truncated for some in parts)
        return call.request(self.runner, TokenizedTexts(ids, parts[0].prompt_tokens, truncated))

    def _cutting(self, most: int | None) -> Embedder:
        """Return an embedder that cuts texts to a number of tokens, special ones included."""
        if most is None or most >= self._embedder.tokenizer.max_seq_length:
            return self._embedder
        least = sum(self._embedder.tokenizer.special_tokens) + 1
        if most < least:
            raise UsageError(f"texts are to be cut to {most} tokens; wanted at least {least}")
        return self._embedder.shortened(most)

    def _options(self, **options: Unpack[QueuedArguments]) -> EncodeOptions:
        settings = encode_options(self.encoder, **options)
        if settings.batch_size is not None:
            raise UsageError(f"batch_size is {settings.batch_size}, but batches are those of the lanes; leave it out")
        return settings

    def put(self, request: Request, done: Callable[[Request], object], wake: bool = True) -> None:
        """Queue a request of `request`, and have a function called in a lane when it has its outcome.

        Without `wake`, call `compute_or_wake` of the scheduler afterwards.

        Raises:
            OverloadedError: too much work waits already.
            TooManyTokensError: the request has more tokens than may wait.
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


@dataclass(frozen=True)
class _Call:
    """Texts of a call, each once, and its options."""

    texts: list[str]
    options: EncodeOptions
    different: DifferentTexts | None
    single: bool  # whether the call has a string, and gets one vector

    @classmethod
    def of(cls, texts: str | Iterable[str], options: EncodeOptions) -> "_Call":
        if isinstance(texts, str):
            return cls([texts], options, None, True)
        items = checked_texts(texts)
        different = DifferentTexts.of(items)
        return cls(items if different is None else different.texts, options, different, False)

    def request(self, runner: Engine, tokenized: TokenizedTexts) -> Request:
        places = None if self.different is None else self.different.places
        return Request(
            runner, tokenized, self._finish_one if self.single else self.options.finish, ignore, places=places
        )

    def _finish_one(self, vectors: NDArray[np.float32]) -> NDArray[Any]:
        row: NDArray[Any] = self.options.finish(vectors)[0]
        return row


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
