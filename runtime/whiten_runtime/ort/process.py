"""Keep locks, waits, threads, hooks, signals and warnings right in forked children and when the process ends."""

import atexit
import csv
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any, Protocol, TypeVar
from weakref import WeakSet

from whiten_runtime.errors import ClosedError

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Renewable(Protocol):
    def renew(self) -> None: ...


_renewables: WeakSet[_Renewable] = WeakSet()


def after_fork_in_child(action: Callable[[], None]) -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)


def _renew_all() -> None:
    for renewable in _renewables:
        renewable.renew()


after_fork_in_child(_renew_all)


class ForkSafeLock:
    """Locks a `with` block. The lock is free in forked children: the thread that held it does not exist there."""

    def __init__(self) -> None:
        self.renew()
        _renewables.add(self)

    def renew(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock; return whether it was taken."""
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()


def lock_against_forks() -> AbstractContextManager[Any]:
    """Return a lock that a fork waits for: in a child, a lock inside C++ that another thread held is never free."""
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


@dataclass(eq=False)
class _Holder:
    amount: int
    limit: int
    owner: object
    admitted: bool = False


class FairSemaphore:
    """Shares an amount, such as bytes of memory, first come, first served. It is free in forked children."""

    def __init__(self) -> None:
        self.renew()
        _renewables.add(self)

    def renew(self) -> None:
        self._changed, self._amount = threading.Condition(), 0
        self._owners: set[object] = set()
        self._waiting: deque[_Holder] = deque()

    @contextmanager
    def hold(self, amount: int, limit: int, owner: object = None) -> Iterator[None]:
        """Wait until an amount is at most `limit` with what others hold, or nobody else holds any; give it back then.

        Who waits holds nothing, and keeps back only those who came later. Of holders with the same `owner`, one holds
        at a time; while the others wait for that one only, they keep nobody back.
        """
        holder = _Holder(amount, limit, owner)
        with self._changed:
            self._waiting.append(holder)
            self._admit()
            try:
                self._changed.wait_for(lambda: holder.admitted)
            except BaseException:  # Ctrl-C
                self._leave(holder)
                raise
        try:
            yield
        finally:
            with self._changed:
                self._leave(holder)

    def _admit(self) -> None:
        for holder in list(self._waiting):
            if holder.owner in self._owners:
                continue
            if self._amount and self._amount + holder.amount > holder.limit:
                break
            self._waiting.remove(holder)
            self._amount += holder.amount
            if holder.owner is not None:
                self._owners.add(holder.owner)
            holder.admitted = True

    def _leave(self, holder: _Holder) -> None:
        if holder.admitted:
            self._amount -= holder.amount
            self._owners.discard(holder.owner)
        else:
            self._waiting.remove(holder)
        self._admit()
        self._changed.notify_all()


class ExitGate:
    """Counts native calls that let other threads run, in `with` blocks, and waits for them before the interpreter ends.

    The interpreter ends threads when they come back from such a call: inside C++ or Rust this aborts the process.
    """

    def __init__(self) -> None:
        self.renew()
        _renewables.add(self)
        atexit.register(self.close)

    def renew(self) -> None:
        self._changed, self._calls, self._closed = threading.Condition(), 0, False

    def __enter__(self) -> None:
        with self._changed:
            if self._closed and threading.current_thread() is not threading.main_thread():
                raise ClosedError("the interpreter is ending; nothing is computed any more")
            self._calls += 1

    def __exit__(self, *raised: object) -> None:
        with self._changed:
            self._calls -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse calls of other threads than the main one from now on, and wait for those that run."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._calls)


native_call = ExitGate()
"""Block around each call of onnxruntime and tokenizers that lets other threads run."""


def in_thread(work: Callable[[], Result], name: str) -> "Future[Result]":
    """Do work in a thread of its own, and return its future.

    Where no thread can be started, because the system's limit is reached or the interpreter is ending, the work is done
    at once in the caller's thread.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:
        run()
    return future


@contextmanager
def thread_group(name: str) -> Iterator[Callable[[Callable[[], Any]], "Future[Any]"]]:
    """Yield `in_thread` without its second argument; wait for all work at the end of the block."""
    futures: list[Future[Any]] = []

    def start(work: Callable[[], Any]) -> "Future[Any]":
        futures.append(in_thread(work, name))
        return futures[-1]

    try:
        yield start
    finally:
        wait(futures)


def map_in_threads(work: Callable[[Item], Result], items: Sequence[Item], most: int, name: str) -> Iterator[Result]:
    """Yield the result for each item, in order, from up to so many threads, each as in `in_thread`.

    Items that no thread has begun when the iterator is closed are left out.
    """
    futures = [Future[Result]() for _ in items]
    waiting = deque(zip(items, futures, strict=True))

    def run() -> None:
        while waiting:
            try:
                item, future = waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                future.set_result(work(item))
            except BaseException as error:
                future.set_exception(error)

    with thread_group(name) as start:
        try:
            for _ in range(min(most, len(items))):
                start(run)
            for future in futures:
                yield future.result()
        finally:
            waiting.clear()


def show_user_warnings(show: Callable[[str], None]) -> None:
    """Let a function show the text of each UserWarning, but none of its subclasses; others are shown as before."""
    before = warnings.showwarning

    def show_warning(message: Any, category: type[Warning], *place: Any, **options: Any) -> None:
        if category is UserWarning:
            show(str(message))
        else:
            before(message, category, *place, **options)

    warnings.showwarning = show_warning


def is_terminal(stream: IO[str] | None) -> bool:
    """Return whether a standard stream is a terminal; None, as where it was closed, is none."""
    return stream is not None and stream.isatty()


def unwind_on_sigterm() -> None:
    """Turn SIGTERM into SystemExit, so that the stack unwinds as after Ctrl-C and temporary files are removed."""
    signal.signal(signal.SIGTERM, _exit)


def unwind_on_ctrl_c() -> None:
    """Turn Ctrl-C into SystemExit with the code 130; a SIGINT that is ignored, as by a background job, stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def end_by_ctrl_c() -> None:
    """End the process by SIGINT, so that a loop of a shell around it ends too."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


class _LongFields:
    """Lets csv read fields of any length while a `with` block of any thread runs."""

    def __init__(self) -> None:
        self._lock, self._blocks, self._limit = ForkSafeLock(), 0, 0

    def __enter__(self) -> None:
        with self._lock:
            if self._blocks == 0:
                self._limit = csv.field_size_limit(2**31 - 1)  # the most that it accepts on every platform
            self._blocks += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                csv.field_size_limit(self._limit)


long_fields = _LongFields()
"""Block in which csv reads fields of any length; else the process's limit holds, of 131,072 characters by default."""
