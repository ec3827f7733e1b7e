"""Draw bars on stderr, and report the stages of long work: `ConsoleReporter`."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from whiten_runtime.commands.console import coloured, say, shows_progress, warn
from whiten_runtime.reporter import Reporter


@contextlib.contextmanager
def drawn_bar(unit: str, total: int | None, by: str | None = None) -> Iterator[Any]:
    """Draw a bar on stderr that vanishes when it is done; nothing where stderr is no terminal, or is to be quiet."""
    from tqdm import tqdm

    columns, lines = shutil.get_terminal_size()  # 80 and 24 of a terminal that does not tell
    with tqdm(
        total=total,
        unit=f" {unit}",
        desc=by,
        leave=False,
        ncols=columns - 1,
        nrows=lines,
        smoothing=0.05,
        disable=not shows_progress(),
    ) as bar:
        yield bar


class ConsoleReporter(Reporter):
    """Reports to stderr, with progress bars on a terminal; keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def stage(self, text: str) -> None:
        say(text, coloured("· ", "cyan"))

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        warn(text)

    @contextlib.contextmanager
    def bar(self, unit: str, total: int | None) -> Iterator[Callable[[int], object]]:
        """Draw a bar with the time left that vanishes when it is done."""
        with drawn_bar(unit, total) as bar:
            yield bar.update
