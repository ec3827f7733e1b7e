"""Begin coroutines at once: most that read a body need not wait, and then need no timeout either."""

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Begun(Generic[T]):
    """Runs a coroutine up to where it first waits. Await it for the rest, unless it is `done`; then it has a `result`.

    Args:
        coroutine: a coroutine that was not begun.

    Attributes:
        done: whether it ended without waiting.
        result: what it returned, if it is done.

    Raises:
        Exception: whatever the coroutine raises before it waits.
    """

    result: T

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._awaited: Any = None
        self.done = False
        try:
            self._awaited = coroutine.send(None)
        except StopIteration as end:
            self.done, self.result = True, end.value

    def __await__(self) -> Generator[Any, Any, T]:
        if self.done:
            return self.result
        awaited, step = self._awaited, self._coroutine.send
        while True:
            given: Any
            try:
                given = yield awaited
                step = self._coroutine.send
            except BaseException as error:  # the task is cancelled
                given, step = error, self._coroutine.throw
            try:
                awaited = step(given)
            except StopIteration as end:
                result: T = end.value
                return result
