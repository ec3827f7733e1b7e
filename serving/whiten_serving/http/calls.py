"""Hold what becomes known of a request, and bound its time and the memory of all requests."""

import asyncio
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from secrets import token_hex
from typing import NoReturn, TypeVar

from starlette.types import Receive, Scope

from whiten_serving.fairness import FairExecutor, Share
from whiten_serving.http.errors import ApiError, ClientGoneError, Dialect
from whiten_serving.requests import OverloadedError, Rate

T = TypeVar("T")

_MOST_WAITING = 262_144
"""Tokens of texts that may wait for a pass, half of them of one client."""

_READ = 500
"""Characters that are read in the time in which a token is computed, about: the unit of a turn of `FairExecutor`."""

WATCH_AFTER = 0.2
"""Seconds before the disconnect of a caller is watched for; most requests end sooner, and a watcher has its cost."""

MAX_REQUESTS = 2048
"""Requests that are worked on at once at most: the memory of small ones is not counted."""

SMALL = 200_000
"""Bytes of memory that a request may take uncounted: those of a body of 64 kB."""

_ID = re.compile(rb"[!-~]{1,128}")
"""Ids of requests that are taken over from the caller: they are logged and sent back, so only what is harmless."""

_PREFIX, _NUMBERS = token_hex(8), count(1)
"""Beginning and end of new ids. Random ones would ask the system, which gives the interpreter away to the lanes."""


@dataclass(slots=True)
class Call:
    """State of one request, for limits, logs and metrics."""

    headers: dict[bytes, bytes]  # by lower-case name
    id: str  # that of the header x-request-id, or a new one
    begun: float  # time of time.monotonic, as the deadline
    route: str
    dialect: Dialect  # of its errors
    deadline: float = math.inf
    client: str = ""  # name of its key
    key: str = ""  # by which clients take turns: that name, or the hash of a key without one
    model: str = ""
    texts: int = 0
    tokens: int = 0
    truncated: int = 0  # texts that were cut
    zeros: int = 0  # texts whose vectors are zeros
    repeated_prompts: int = 0  # texts that begin with the prompt that they get
    tokenize_seconds: float = 0.0
    queue_seconds: float = 0.0
    run_seconds: float = 0.0
    status: int = 0  # 499 where the caller has gone
    code: str | None = None  # of its error
    ignored: Sequence[str] = ()  # names of its fields that mean nothing here
    awaited: bool = False  # whether its body was asked for
    received: bool = False  # whether its body was read
    reserved: int = 0  # bytes of the budget
    admitted: bool = False  # whether it counts among the requests in flight

    @classmethod
    def of(cls, scope: Scope, route: str = "unknown", dialect: Dialect = "openai") -> "Call":
        """Return the request of an ASGI scope."""
        headers = dict(scope["headers"])
        own = headers.get(b"x-request-id", b"")
        name = own.decode("ascii") if _ID.fullmatch(own) else f"{_PREFIX}-{next(_NUMBERS):x}"
        return cls(headers, name, time.monotonic(), route, dialect)

    @property
    def remaining(self) -> float:
        """Return the seconds until the deadline, less than 0 after it."""
        return self.deadline - time.monotonic()


class Budget:
    """Bounds the requests that are worked on, and the memory of their bodies, decoded texts and answers, by client.

    Bodies and answers below 64 kB are free: small requests must be answered whatever others send. If nothing else is
    reserved, one request of any size is accepted. An answer counts until the client has taken it.
    """

    def __init__(self, most_bytes: int) -> None:
        self.requests, self.bytes = Share(MAX_REQUESTS), Share(most_bytes)
        self.refused = {"requests": 0, "bytes": 0}

    def begin(self, call: Call) -> None:
        """Count a request; raise OverloadedError if its client has as many as it may have."""
        if not self.requests.admits(call.key, 1):
            self._refuse("requests", f"{self.requests.total} are in flight (limit {MAX_REQUESTS})")
        self.requests.add(call.key, 1)
        call.admitted = True

    def reserve(self, call: Call, total: int) -> None:
        """Reserve memory for a request, so many bytes together with those that it has reserved already."""
        more = total - call.reserved
        if total <= SMALL or more <= 0:
            return
        if self.bytes.total > call.reserved and not self.bytes.admits(call.key, more):
            held, limit = self.bytes.total, self.bytes.limit
            self._refuse("bytes", f"bodies and answers take {held} bytes of memory (limit {limit})")
        self.bytes.add(call.key, more)
        call.reserved = total

    def end(self, call: Call) -> None:
        """Forget a request, and what it has reserved."""
        if call.admitted:
            self.requests.add(call.key, -1)
            self.bytes.add(call.key, -call.reserved)

    def _refuse(self, reason: str, why: str) -> NoReturn:
        self.refused[reason] += 1
        message = f"too many requests: {why}, of which each client has a share; try again in 1 s"
        raise OverloadedError(message, 1.0)


class Guarded:
    """Cancels a request at its deadline, and when its caller has gone, which ASGI tells to those who await `receive`.

    A quick request costs it a single timer.
    """

    def __init__(self, call: Call, receive: Receive) -> None:
        self._call, self._receive = call, receive
        self._why: Exception | None = None
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._before, self._loop = task, task.cancelling(), task.get_loop()
        self._timer = self._loop.call_later(min(WATCH_AFTER, self._call.remaining), self._look)

    def _look(self) -> None:
        left = self._call.remaining
        if left <= 0:
            self._end(ApiError("deadline", "the request timed out; send fewer texts at once, or try later"))
            return
        if self._call.received and self._watcher is None:
            self._watcher = self._loop.create_task(self._watch())
        self._timer = self._loop.call_later(left if self._watcher else min(WATCH_AFTER, left), self._look)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._end(ClientGoneError())

    def _end(self, why: Exception) -> None:
        if self._why is None:  # a second cancellation would leave the block
            self._why = why
            self._task.cancel()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._why is not None and self._task.uncancel() <= self._before:  # else somebody else cancels it too
            raise self._why from None


class Passes:
    """Runs one pass at a time, in turns of the clients, and refuses those before which too much work goes.

    Args:
        max_wait: seconds of work that may go before a pass, at the measured rate; None for no bound.
    """

    def __init__(self, max_wait: float | None) -> None:
        self._max_wait = max_wait
        self._executor, self._waiting, self._rate = FairExecutor(1), Share(_MOST_WAITING), Rate()

    async def run(self, call: Call, tokens: int, compute: Callable[[], T]) -> T:
        """Return what a function returns that computes so many tokens, and tell the call how long it took."""
        seconds = self._rate.seconds_for(self._waiting.total)
        most = call.remaining if self._max_wait is None else min(self._max_wait, call.remaining)
        if seconds > most or not self._waiting.admits(call.key, tokens):
            message = f"too many texts with passages: {seconds:.1f} s of work go before this one; try again then"
            raise OverloadedError(message, seconds)
        asked = time.monotonic()

        def timed() -> T:
            begun = time.monotonic()
            result = compute()
            call.queue_seconds, call.run_seconds = begun - asked, time.monotonic() - begun
            self._rate.add(tokens, call.run_seconds)
            return result

        self._waiting.add(call.key, tokens)
        try:
            return await self._executor.run(call.key, tokens * _READ, timed)
        finally:
            self._waiting.add(call.key, -tokens)
