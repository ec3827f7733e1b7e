"""Decide how often the state of long work is saved: often enough that little is lost, and at a bounded cost."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SECONDS = 1.0
"""Seconds of work that a kill may cost beside the window that is being computed."""

SHARE = 0.05
"""Largest share of the time that saving may take."""


@dataclass
class Pace:
    """Says when to save next: after `seconds`, or later where saves are slow, so that they take `SHARE` of the time."""

    seconds: float = field(default_factory=lambda: SECONDS)  # least number of seconds between two saves
    _next: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._next = time.monotonic() + self.seconds

    def is_due(self) -> bool:
        """Return whether it is time to save."""
        return time.monotonic() >= self._next

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Time a save, and plan the next one."""
        start = time.monotonic()
        yield
        end = time.monotonic()
        self._next = end + max(self.seconds, (end - start) / SHARE)
