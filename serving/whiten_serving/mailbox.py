"""Carry outcomes of requests from the lanes' threads into an event loop."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from whiten_serving.batching.request import Request


class Mailbox:
    """Wakes the tasks of one event loop whose requests have ended: the loop once for many requests.

    Args:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ended: deque[Request] = deque()
        self._waiting: dict[Request, asyncio.Future[None]] = {}

    def expect(self, request: Request) -> "asyncio.Future[None]":
        """Return a future that is done when the request has its outcome. Call it in the loop, before it is queued."""
        future = self.loop.create_future()
        self._waiting[request] = future
        return future

    def forget(self, request: Request) -> None:
        """Expect a request no longer. Call it in the loop."""
        self._waiting.pop(request, None)

    def deliver(self, requests: Sequence[Request]) -> None:
        """Note that requests have ended, and wake the loop. Safe to call in any thread."""
        self._ended.extend(requests)
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        while self._ended:
            future = self._waiting.get(self._ended.popleft())
            if future is not None and not future.done():
                future.set_result(None)
