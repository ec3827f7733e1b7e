"""Locks that a forked child finds free, whoever held them in the parent."""

import os
import threading
from types import TracebackType
from weakref import WeakSet


class ForkSafeLock:
    """A lock for `with`; a forked child, in which the thread that held it does not exist, gets a new one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Forget who holds the lock."""
        self._lock = threading.Lock()


_locks: WeakSet[ForkSafeLock] = WeakSet()


def _after_fork_in_child() -> None:
    for lock in _locks:
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
