"""Notice callers that go before they have their answer."""

import asyncio
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from whiten_serving.http.call import Receive
from whiten_serving.http.errors import ClientGoneError

PATIENCE = 0.2
"""Seconds that a request runs before anybody watches whether its caller has gone: most are answered before, and a
watcher costs a request more than its JSON."""


class Watched(AbstractAsyncContextManager[None]):
    """Cancels the block if the caller goes meanwhile. ASGI tells that only to those who await `receive`.

    Args:
        receive: function that gives the parts of the body, all of which were read, and then the end of the connection.

    Raises:
        ClientGoneError: the caller has gone.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._before = task, task.cancelling()
        self._begin = asyncio.get_running_loop().call_later(PATIENCE, self._start)

    def _start(self) -> None:
        self._watcher = self._task.get_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._begin.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._gone and self._task.uncancel() <= self._before:  # else somebody else cancels the request too
            raise ClientGoneError from None
