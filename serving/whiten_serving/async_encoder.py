"""Batch the texts of many tasks of an event loop: `AsyncEncoder`."""

import asyncio
import math
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack

from numpy.typing import NDArray

from whiten_runtime.errors import UsageError, as_iterable, needing
from whiten_runtime.inference.options import QueuedArguments
from whiten_runtime.opened.encoder import Encoder
from whiten_serving.encoder_queue import EncoderQueue
from whiten_serving.requests import BatcherStats, DeadlineExceededError, moment_in

if TYPE_CHECKING:
    from starlette.applications import Starlette


class AsyncEncoder:
    """Embeds texts of many tasks with one encoder, in batches that they share. It is a `Batcher` for event loops.

    Its arguments are those of `Batcher`, but that it shares lanes with another `AsyncEncoder`.

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
        shared_with: "AsyncEncoder | None" = None,
    ) -> None:
        self._queue: EncoderQueue = EncoderQueue(
            encoder,
            None if shared_with is None else shared_with._queue.scheduler,
            lanes=lanes,
            max_wait=max_wait,
        )

    async def encode(
        self,
        texts: str | Iterable[str],
        *,
        timeout: float | None = None,
        **options: Unpack[QueuedArguments],
    ) -> NDArray[Any]:
        """Embed texts. Cancelling the task keeps texts that wait from being computed.

        Args:
            texts: one text, or several, as in `Encoder.encode`.
            timeout: seconds after which DeadlineExceededError is raised and waiting texts are dropped; None for no end.
            options: the keyword arguments of `Encoder.encode`, but `batch_size`: batches are the lanes'.

        Returns:
            What `Encoder.encode` returns: float32 [n, k], or [k] for a single string; it is within 1e-6 of the norm.

        Raises:
            OverloadedError: too much work waits already.
            TooManyTokensError: there are more tokens than can be computed in the time, or than may wait.
            DeadlineExceededError: the vectors were not there in time.
            TextError: an item is not a string; the message has its index.
            TooLongError: a text is too long and `truncate` is False.
            UsageError: an option cannot be used as given.
            ClosedError: the batcher or the encoder is closed.
        """
        until = moment_in("timeout", timeout)
        self._queue.scheduler.check_room()
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

    def stats(self) -> BatcherStats:
        """Return what waits and runs now, and what was done so far."""
        return self._queue.scheduler.stats()

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
            from whiten_serving.http.app import make_app
            from whiten_serving.http.models import Models, ServedModel
            from whiten_serving.http.service import Service
            from whiten_serving.settings import AppSettings

        models = Models([ServedModel(name or self._queue.encoder.manifest.name, self._queue)])
        return make_app(Service(models, AppSettings.of(options)))

    async def close(self, wait: bool = True) -> None:
        """Take no more requests, and compute what waits; close the encoder if it was opened here.

        Args:
            wait: False fails what waits, and returns when the running batches end.
        """
        await asyncio.to_thread(self._queue.close, wait)

    def __reduce__(self) -> NoReturn:
        raise UsageError("an AsyncEncoder has threads, which cannot be pickled; pickle its encoder, or the path")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
