"""Contain effects of this package on the whole process: hooks, signals, warnings, limits."""

import csv
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import IO, Any

from whiten_runtime.ort.threads import ForkSafeLock


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
