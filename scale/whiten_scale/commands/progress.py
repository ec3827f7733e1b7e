"""Show the progress of many workers: a bar on a terminal, else a line from time to time."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from whiten_runtime.commands.bars import drawn_bar
from whiten_runtime.commands.console import say, shows_progress
from whiten_scale.tasks import Advance

_SECONDS = 30.0
"""Seconds between two lines."""


@contextmanager
def progress(what: str, total: int, by: str) -> Iterator[Advance]:
    """Show how many of `total` records are done, and by whom; what is yielded may be called from any thread."""
    lock = threading.Lock()
    if shows_progress():
        with drawn_bar("records", total, by=by) as bar:

            def update(count: int) -> None:
                with lock:
                    bar.update(count)

            yield update
        return
    done, begin, last = 0, time.monotonic(), time.monotonic()

    def count_up(count: int) -> None:
        nonlocal done, last
        with lock:
            done += count
            now = time.monotonic()
            if now - last < _SECONDS:
                return
            last, rate = now, max(done, 0) / (now - begin)
            say(f"{what} {done:,} of {total:,} records, {rate:,.0f} a second, {by}")

    yield count_up
