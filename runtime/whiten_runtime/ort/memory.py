"""Find the memory that this process may use, and let runs that take much of it wait for one another."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from whiten_runtime.ort.process import after_fork_in_child
from whiten_runtime.ort.processor import cgroups

_SHARE = 2
"""The default budget of runs is the memory that the process may use, divided by this: weights and others need some."""


def default_budget(root: Path = Path("/")) -> int:
    """Return the bytes that texts may take by default: half of what the machine has or the cgroup allows."""
    return usable_memory(root) // _SHARE


def usable_memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process may use: the machine's memory, or the limit of its cgroup if that is less."""
    limits = [_physical()]
    for group, version in cgroups(root, "memory"):
        try:
            text = (group / ("memory.max" if version == 2 else "memory.limit_in_bytes")).read_text().strip()
            limits.append(int(text))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(limits)


def _physical() -> int:
    if not hasattr(os, "sysconf"):
        return 8 << 30  # Windows: the least that machines have today
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class _Held:
    """Counts the bytes that running texts take in this process."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forget the runs of the process that this one was forked from."""
        self._changed, self._bytes = threading.Condition(), 0

    @contextmanager
    def hold(self, needed: int, budget: int) -> Iterator[None]:
        """Wait until `needed` bytes fit the budget besides those of other runs, or nothing else runs."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._bytes + needed <= budget)
            self._bytes += needed
        try:
            yield
        finally:
            with self._changed:
                self._bytes -= needed
                self._changed.notify_all()


running_texts = _Held()
"""Memory of the texts that this process computes, of all encoders."""

after_fork_in_child(running_texts.renew)
