"""Report stages, warnings and progress of long commands on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from whiten_runtime.commands import console
from whiten_runtime.commands.bars import drawn_bar
from whiten_runtime.commands.console import coloured, say
from whiten_runtime.reporter import Bar, Reporter


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
