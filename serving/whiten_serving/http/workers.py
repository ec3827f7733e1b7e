"""Run the work of requests that no lane bounds, in a few threads of their own."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar

from whiten_serving.http.call import Call
from whiten_serving.http.errors import ApiError
from whiten_serving.http.watching import Watched

S = TypeVar("S")
T = TypeVar("T")


class Workers:
    """Runs a function over the items of a request, in another thread, for as long as somebody waits for it.

    Args:
        name: name of the threads.
        threads: number of requests that are worked on at once.
        most: number of requests that may wait or run.
    """

    def __init__(self, name: str, threads: int = 2, most: int = 32) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most = most
        self._waiting = 0

    async def map(self, call: Call, function: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """Return what the function makes of each item. After the deadline, or if the caller goes, the rest is left out.

        Args:
            call: the request.
            function: function of an item, which takes a second at most.
            items: the items.

        Raises:
            ApiError: too many requests wait, or the time of the request is over.
            ClientGoneError: the caller has gone.
        """
        if self._waiting >= self._most:
            message = f"{self._waiting} requests of this kind wait, and {self._most} may; try again in a second"
            raise ApiError("threads_busy", message)
        stopped = Event()
        self._waiting += 1
        try:
            async with asyncio.timeout(call.remaining), Watched(call.receive):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, _mapped, function, items, stopped)
        except TimeoutError:
            raise ApiError(
                "deadline", "the time of the request was over before it was answered; give it more"
            ) from None
        finally:
            stopped.set()
            self._waiting -= 1


def _mapped(function: Callable[[S], T], items: Sequence[S], stopped: Event) -> list[T]:
    found: list[T] = []
    for item in items:
        if stopped.is_set():
            break
        found.append(function(item))
    return found
