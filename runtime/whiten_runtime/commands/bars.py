"""Draw the progress of long work on a terminal, with the time left, and report its stages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from whiten_runtime.commands import console
from whiten_runtime.commands.console import coloured, say, shows_progress
from whiten_runtime.reporter import Bar, Reporter

_NARROW = 60
"""Columns of a terminal below which no bar is drawn, so that the time left has room."""

_FIGURES = 30
"""Columns that the figures of a line of words take at most, without the unit."""


@contextmanager
def drawn_bar(unit: str, total: int | None, done: int = 0, by: str | None = None) -> Iterator[Any]:
    """Draw a bar on stderr that vanishes when it is done; nothing where stderr is no terminal, or is to be quiet."""
    from tqdm import tqdm

    columns, lines = shutil.get_terminal_size()  # 80 and 24 of a terminal that does not tell
    with tqdm(
        total=total,
        initial=done,
        unit=f" {unit}",
        desc=None if columns < _NARROW else by,
        leave=False,
        ncols=columns - 1,
        nrows=lines,
        smoothing=0.05,
        disable=not shows_progress(),
        bar_format=_format(unit, total, columns),
    ) as bar:
        yield bar


def _format(unit: str, total: int | None, columns: int) -> str | None:
    """Return the format of tqdm for a terminal of so many columns; None for its own, with a bar."""
    if unit == "seconds" and total is None:
        return "{elapsed}"
    if columns >= _NARROW:
        return None
    named = f" {unit}" if len(unit) + _FIGURES <= columns else ""
    if total is None:
        return "{n_fmt}" + named + ", {elapsed}"
    return "{percentage:3.0f}% of {total_fmt}" + named + ", {remaining} left"


class _Drawn(Bar):
    """Draws progress with tqdm, which shows the time left."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def __call__(self, count: int) -> None:
        self._bar.update(count)

    def expect(self, total: int) -> None:
        self._bar.total = total
        self._bar.refresh()


class ConsoleReporter(Reporter):
    """Reports to stderr, with progress bars on a terminal; keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def stage(self, text: str) -> None:
        """Print a line for the stage."""
        say(text, coloured("· ", "cyan"))

    def warn(self, text: str) -> None:
        """Print and keep the warning."""
        self.warnings.append(text)
        console.warn(text)

    @contextmanager
    def bar(self, unit: str, total: int | None) -> Iterator[Bar]:
        """Draw a bar with the time left that vanishes when it is done."""
        with drawn_bar(unit, total) as bar:
            yield _Drawn(bar)
