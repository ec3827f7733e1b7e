"""Batch the texts of many tasks of an event loop: `AsyncEncoder`."""

import asyncio
import math
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from numpy.typing import NDArray

from whiten_runtime.bundle.manifest import VectorPrecision
from whiten_runtime.checks import as_iterable, needing
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import UsageError
from whiten_runtime.ort.process import ForkSafeLock
from whiten_serving.batcher import Batcher
from whiten_serving.batching.bounds import MAX_QUEUE_TOKENS, moment_in
from whiten_serving.batching.counters import Stats
from whiten_serving.batching.lanes import Lanes
from whiten_serving.batching.request import Request
from whiten_serving.errors import DeadlineExceededError
from whiten_serving.mailbox import Mailbox

if TYPE_CHECKING:
    from whiten_serving.http.app import App

_AT_ONCE = 4096
"""Characters up to which texts are tokenised in the event loop's thread: it takes less than a millisecond, and handing
them to another thread would take about as long."""

_TEXT = 8
"""Characters that a text counts at least: 100,000 empty ones take their time too."""


class AsyncEncoder:
    """Embeds texts of many tasks with one encoder, in batches that they share. It is a `Batcher` for event loops.

    Args:
        encoder: an encoder, which stays the caller's to close; or the bundle of one that is opened and closed here.
        lanes: number of batches that run at once; None for the encoder's own number, as many as it has threads.
        max_batch_tokens: number of padded tokens of a batch at most; None for the encoder's own number.
        max_queue_tokens: number of tokens that may wait.
        max_wait: seconds of work that may wait, at the rate measured so far; None for no bound but that of tokens.
        shared: lanes of another encoder, as in `Batcher`.

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
        self.batcher = Batcher(
            encoder,
            lanes=lanes,
            max_batch_tokens=max_batch_tokens,
            max_queue_tokens=max_queue_tokens,
            max_wait=max_wait,
            shared=shared,
        )
        self._boxes: dict[asyncio.AbstractEventLoop, Mailbox] = {}
        self._boxes_lock = ForkSafeLock()

    async def encode(
        self,
        texts: str | Iterable[str],
        *,
        dimensions: int | None = None,
        normalize: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = True,
        precision: VectorPrecision = "float32",
        timeout: float | None = None,
    ) -> NDArray[Any]:
        """Embed texts. Cancelling the task keeps texts that wait from being computed.

        Args:
            texts: one text, or several, as in `Encoder.encode`.
            dimensions: number of leading coordinates to keep; `truncate_dim` of `Encoder.encode`.
            normalize: divide each vector by its L2 norm; `normalize_embeddings` of `Encoder.encode`.
            prompt_name: name of a prompt, as in `Encoder.encode`.
            prompt: the prompt itself, as in `Encoder.encode`.
            truncate: truncate long texts instead of raising.
            precision: precision of the numbers, as in `Encoder.encode`.
            timeout: seconds after which DeadlineExceededError is raised and waiting texts are dropped; None for no end.

        Returns:
            What `Encoder.encode` returns: float32 [n, k], or [k] for a single string; it is within 1e-6 of the norm.

        Raises:
            OverloadedError: too much work waits already; nothing was tokenised or queued.
            DeadlineExceededError: the vectors were not there in time.
            TextError: an item is not a string; the message has its index.
            TooLongError: a text is too long and `truncate` is False.
            UsageError: an option cannot be used as given.
            WhitenError: the batcher or the encoder is closed.
        """
        request = await self.request(
            texts,
            dimensions=dimensions,
            normalize=normalize,
            prompt_name=prompt_name,
            prompt=prompt,
            truncate=truncate,
            precision=precision,
            timeout=timeout,
        )
        return await self.answer(request)

    async def request(
        self,
        texts: str | Iterable[str],
        *,
        dimensions: int | None = None,
        normalize: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = True,
        precision: VectorPrecision = "float32",
        timeout: float | None = None,
    ) -> Request:
        """Tokenise texts, in another thread if they are long, and return a request for `answer`.

        Args:
            texts: one text, or several.
            dimensions: number of leading coordinates to keep.
            normalize: divide each vector by its L2 norm.
            prompt_name: name of a prompt.
            prompt: the prompt itself.
            truncate: truncate long texts instead of raising.
            precision: precision of the numbers.
            timeout: seconds after which the texts are not computed any more.

        Raises:
            WhitenError: as in `encode`.
        """
        self.batcher.lanes.check_room()
        if not isinstance(texts, str):
            texts = list(as_iterable(texts))
        until = moment_in("timeout", timeout)
        named: dict[str, Any] = {
            "prompt_name": prompt_name,
            "prompt": prompt,
            "truncate": truncate,
            "truncate_dim": dimensions,
            "normalize_embeddings": normalize,
            "precision": precision,
        }
        deliver = self._mailbox().deliver
        if _characters(texts, prompt) <= _AT_ONCE:
            request = self.batcher.request(texts, deliver, **named)
        else:
            request = await asyncio.to_thread(self.batcher.request, texts, deliver, **named)
        request.deadline = until
        return request

    async def answer(self, request: Request, timeout: float | None = None) -> NDArray[Any]:
        """Queue a request and wait for its vectors.

        Args:
            request: what `request` returned.
            timeout: seconds to wait from now, if they end before the timeout of `request`.

        Raises:
            WhitenError: as in `encode`.
        """
        until = min(request.deadline, moment_in("timeout", timeout))
        seconds = until - time.monotonic()
        mailbox = self._mailbox()
        answered = mailbox.expect(request)
        timer = None if until == math.inf else mailbox.loop.call_later(seconds, _end, answered)
        try:
            self.batcher.queue(request)
            await answered
        except TimeoutError:
            raise DeadlineExceededError(f"not computed within {max(seconds, 0):.3g} s") from None
        finally:
            if timer is not None:
                timer.cancel()
            mailbox.forget(request)
            self.batcher.cancel(request)
        if request.error is not None:
            raise request.error
        assert request.result is not None
        return request.result

    def _mailbox(self) -> Mailbox:
        """Return the mailbox of the running event loop."""
        loop = asyncio.get_running_loop()
        with self._boxes_lock:
            if loop not in self._boxes:
                self._boxes = {other: box for other, box in self._boxes.items() if not other.is_closed()}
                self._boxes[loop] = Mailbox(loop)
            return self._boxes[loop]

    def stats(self) -> Stats:
        """Return what waits and runs now, and what was done so far."""
        return self.batcher.stats()

    def asgi_app(self, name: str | None = None, **options: Any) -> "App":
        """Return an ASGI application with the routes of OpenAI, TEI and Ollama, to mount in FastAPI or Starlette.

        Closing this encoder stays the caller's.

        Args:
            name: name of the model in requests and answers; None for that of the bundle.
            options: options of the application, such as `api_keys` and `max_texts`: those of `HttpOptions`.

        Raises:
            UsageError: an option is unknown, or cannot be used as given.
            MissingPackageError: a package of the extra `serve` is missing.
        """
        with needing("serve"):
            from whiten_serving.http.app import App
            from whiten_serving.http.models import Models, ServedModel
            from whiten_serving.http.options import HttpOptions

        return App(Models([ServedModel(name or self.batcher.encoder.manifest.name, self)]), HttpOptions.of(options))

    async def close(self, wait: bool = True) -> None:
        """Take no more requests, and compute what waits; close the encoder if it was opened here.

        Args:
            wait: False fails what waits, and returns when the running batches end.
        """
        await asyncio.to_thread(self.batcher.close, wait)

    def __reduce__(self) -> NoReturn:
        raise UsageError("an AsyncEncoder has threads, which cannot be pickled; pickle its encoder, or the path")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _end(answered: "asyncio.Future[None]") -> None:
    """End a wait that has lasted too long."""
    if not answered.done():
        answered.set_exception(TimeoutError())


def _characters(texts: object, prompt: str | None) -> int:
    """Return the number of characters of texts and prompts, about; items that are none are refused later."""
    items = texts if isinstance(texts, list) else [texts]
    extra = len(prompt) if isinstance(prompt, str) else 0
    return sum(max(len(text) + extra, _TEXT) for text in items if isinstance(text, str))
