"""Define how an export reports stages, warnings and progress, independently of the display."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Reporter:
    """Receives stages, warnings and progress, and ignores them. Subclasses display them."""

    def stage(self, text: str) -> None:
        """Report that a stage begins."""

    def warn(self, text: str) -> None:
        """Report something that the user should know, though the export continues."""

    @contextmanager
    def bar(self, unit: str, total: int | None) -> Iterator[Callable[[int], object]]:
        """Report progress through `total` units (None: unknown).

        The function that a `with` block gets is called with the number of units done since its last call.
        """
        yield lambda count: None
