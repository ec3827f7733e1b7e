"""Keep threads in step with their process: forked children have none of them, and they end before the interpreter."""

from typing import Protocol
from weakref import WeakSet

from whiten_runtime.ort.process import after_fork_in_child, before_exit


class Threads(Protocol):
    """Owns threads."""

    def reset(self) -> None:
        """Forget all threads, which only the parent of this process has."""

    def close(self, wait: bool = True) -> None:
        """End all threads, without the work that waits if `wait` is False."""


def follow_process(threads: Threads) -> None:
    """Reset these threads in forked children, and close them when the interpreter ends.

    Without that, the interpreter would end threads inside onnxruntime, which aborts the process.
    """
    _live.add(threads)


_live: WeakSet[Threads] = WeakSet()


def _reset() -> None:
    for threads in _live:
        threads.reset()


def _close() -> None:
    for threads in list(_live):
        threads.close(wait=False)


after_fork_in_child(_reset)
before_exit(_close)
