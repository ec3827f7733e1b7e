"""Define how an export reports stages, warnings and progress, independently of the display."""

from collections.abc import Iterator
from contextlib import contextmanager


class ProgressBar:
    """Receives progress, and ignores it."""

    def __call__(self, count: int) -> None:
        """Report that so many more units are done."""

    def expect(self, total: int) -> None:
        """Report that another number of units will probably be enough, from which the time left follows."""


class Reporter:
    """Receives stages, warnings and progress, and ignores them. Subclasses display them."""

    def stage(self, text: str) -> None:
        """Report that a stage begins."""

    def warn(self, text: str) -> None:
        """Report something that the user should know, though the export continues."""

    @contextmanager
    def bar(self, unit: str, total: int | None) -> Iterator[ProgressBar]:
        """Report progress through `total` units (None: unknown); the bar is called with the units done since then."""
        yield ProgressBar()
