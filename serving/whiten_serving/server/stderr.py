"""Write lines to stderr without waiting for whoever reads it."""

import io
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

_PIECE = 1000
"""Characters that are written at once: a pipe that takes any bytes takes 4096, so this many never wait."""

_PATIENCE = 500
"""Milliseconds in which the rest of a line must be taken, once it has begun."""


class Lines:
    """Writes lines to stderr. While its reader takes none, lines are left out and counted: waiting stops the server.

    Args:
        about_lost: makes the line that says, when the reader goes on, how many were left out.
    """

    def __init__(self, about_lost: Callable[[int], str]) -> None:
        self._about_lost = about_lost
        self._lost = 0
        self._lock = Lock()

    def write(self, text: str) -> None:
        """Write one or several lines; a terminal or pipe that is gone must not end the server."""
        with self._lock:
            if self._lost and _writable(0):
                _write(self._about_lost(self._lost))
                self._lost = 0
            if _writable(0):
                _write(text)
            else:
                self._lost += 1


def _write(text: str) -> None:
    line = f"{text}\n"
    with suppress(OSError):
        for start in range(0, len(line), _PIECE):
            if start and not _writable(_PATIENCE):
                return
            print(line[start : start + _PIECE], end="", file=sys.stderr, flush=True)


def _writable(milliseconds: int) -> bool:
    """Return whether stderr takes bytes now, or soon; an error counts as yes, since writing does not wait then."""
    if sys.platform == "win32":
        return True
    try:
        file = sys.stderr.fileno()
    except (AttributeError, io.UnsupportedOperation, ValueError):  # there is none, or it is something in memory
        return True
    poll = select.poll()
    poll.register(file, select.POLLOUT)
    return bool(poll.poll(milliseconds))
