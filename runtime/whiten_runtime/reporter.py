"""How an export tells what it is doing, without knowing to whom."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Reporter:
    """Hears about stages, warnings and progress, and says nothing. Subclasses say it."""

    def stage(self, text: str) -> None:
        """A stage begins."""

    def warn(self, text: str) -> None:
        """Something the user should know, though the export goes on."""

    @contextmanager
    def bar(self, unit: str, total: int | None) -> Iterator[Callable[[int], object]]:
        """Progress through `total` units (None: not known yet); the callback is told how many more are done."""
        yield lambda count: None
