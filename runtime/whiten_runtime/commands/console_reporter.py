"""Report stages, warnings and progress of long commands on stderr."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from whiten_runtime.commands import console
from whiten_runtime.commands.console import say
from whiten_runtime.reporter import Reporter


class ConsoleReporter(Reporter):
    """Reports to stderr, with progress bars on a terminal; keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def stage(self, text: str) -> None:
        """Print a line for the stage."""
        say(click.style("· ", fg="cyan") + text)

    def warn(self, text: str) -> None:
        """Print and keep the warning."""
        self.warnings.append(text)
        console.warn(text)

    @contextmanager
    def bar(self, unit: str, total: int | None) -> Iterator[Callable[[int], object]]:
        """Draw a bar that vanishes when it is done."""
        from tqdm import tqdm

        with tqdm(total=total, unit=f" {unit}", leave=False, disable=not sys.stderr.isatty()) as bar:
            yield bar.update
