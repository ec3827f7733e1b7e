"""Share lanes, threads and memory among clients: `Turns`, `Share` and `FairExecutor`."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar

Member = TypeVar("Member")
Result = TypeVar("Result")

_CHARACTERS = 16_384
"""Characters of a turn of the threads that read texts: some milliseconds."""


class Turns(Generic[Member]):
    """Orders members by their turns, and counts what each has taken (deficit round robin: Shreedhar, Varghese, 1996).

    A turn lasts until a member has taken a share. What it takes beyond its share is a debt, which stays when the member
    has nothing to do for a while, and for which its next turns are passed over.
    """

    def __init__(self, share: int) -> None:
        self._share = share
        self._taken: dict[Member, int] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(self._taken)

    def __len__(self) -> int:
        return len(self._taken)

    def add(self, member: Member) -> None:
        """Put a member behind the others; one that is there stays where it is."""
        self._taken.setdefault(member, 0)

    def remove(self, member: Member) -> None:
        """Forget a member and its debt."""
        del self._taken[member]

    def charge(self, member: Member, amount: int) -> None:
        """Note that a member has taken an amount, in its own turn or in that of another one."""
        self._taken[member] += amount

    def first(self, waiting: Container[Member] | None = None) -> Member:
        """Return the member whose turn it is, one of those that wait, or of all; there must be one."""
        while True:
            member, taken = next(iter(self._taken.items()))
            if taken < self._share and (waiting is None or member in waiting):
                return member
            del self._taken[member]
            if taken >= self._share:
                self._taken[member] = taken - self._share


class Share:
    """Bounds an amount, such as bytes, of which a client has at most as much as it leaves for the others.

    So a single client has at most half of the limit, and of n clients that want more than that each has the limit
    divided by n + 1. A client without a name is the only one, and may take all.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.total = limit, 0
        self._held = Counter[str]()

    def admits(self, client: str, amount: int) -> bool:
        """Return whether a client may take an amount more."""
        left = self.limit - self.total - amount
        return left >= (self._held[client] + amount if client else 0)

    def add(self, client: str, amount: int) -> None:
        """Note that a client takes an amount, or gives it back where it is negative."""
        self.total += amount
        self._held[client] += amount
        if not self._held[client]:
            del self._held[client]


class FairExecutor:
    """Runs functions in threads, in which clients take turns by the size of their work."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "whiten-texts")
        self._lock = Lock()
        self._turns = Turns[str](_CHARACTERS)
        self._waiting: dict[str, deque[tuple[Future[Any], int, Callable[[], Any]]]] = {}

    async def run(self, client: str, size: int, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return what a function returns; its work takes as long as reading `size` characters."""
        future = Future[Result]()
        with self._lock:
            self._waiting.setdefault(client, deque()).append((future, size, partial(function, *arguments)))
            self._turns.add(client)
        try:
            self._pool.submit(self._run_next)
        except RuntimeError:  # no thread can be started, or the interpreter ends
            self._run_next()
        return await asyncio.wrap_future(future)

    async def run_parts(self, client: str, sizes: Sequence[int], function: Callable[[slice], Result]) -> list[Result]:
        """Return what a function returns for each part of some items, which are as long as a turn; see `pieces`."""
        return [await self.run(client, size, function, part) for part, size in pieces(sizes)]

    def _run_next(self) -> None:
        with self._lock:
            if not self._waiting:  # the pool may run what it has refused, where it could start no thread
                return
            client = self._turns.first(self._waiting)
            future, size, function = self._waiting[client].popleft()
            wanted = future.set_running_or_notify_cancel()
            self._turns.charge(client, size if wanted else 0)
            if not self._waiting[client]:
                del self._waiting[client]
            if not self._waiting:
                self._turns = Turns(_CHARACTERS)
        if wanted:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

    def close(self) -> None:
        """Let the threads end; what runs is not waited for."""
        self._pool.shutdown(wait=False)


def pieces(sizes: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Yield parts of a sequence of items, given by the characters of each, as long as a turn; and their characters."""
    start = total = 0
    for end, size in enumerate(sizes, 1):
        total += size
        if total >= _CHARACTERS or end == len(sizes):
            yield slice(start, end), total
            start, total = end, 0
