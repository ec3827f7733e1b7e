"""Bound the work that may wait, and the time that a request may take."""

import math
import time
from dataclasses import dataclass
from numbers import Real

from whiten_runtime.checks import whole_number
from whiten_runtime.errors import UsageError
from whiten_serving.errors import OverloadedError

MAX_QUEUE_TOKENS = 131_072
"""Default for the number of tokens that may wait: some seconds of a small model on two cores."""


@dataclass(frozen=True)
class Bounds:
    """Holds how much work may wait.

    Attributes:
        queue_tokens: number of tokens.
        wait: seconds that the work takes at the measured rate; None for no bound but that of tokens.
    """

    queue_tokens: int = MAX_QUEUE_TOKENS
    wait: float | None = None

    def __post_init__(self) -> None:
        whole_number("max_queue_tokens", self.queue_tokens, 1)
        if self.wait is not None and not (is_number(self.wait) and self.wait > 0):
            raise UsageError(f"max_wait is {self.wait!r}; wanted seconds greater than 0, or None")

    def check(self, waiting: int, tokens: int, seconds: float) -> None:
        """Check that more work may wait. Whatever comes while nothing waits may.

        Args:
            waiting: number of tokens that wait.
            tokens: number of tokens that would be added.
            seconds: time that the tokens that wait take; 0 if the rate is not known yet.

        Raises:
            OverloadedError: too much would wait.
        """
        if not waiting:
            return
        why = None
        if waiting + tokens > self.queue_tokens:
            why = f"{waiting} tokens wait, and {self.queue_tokens} may"
        elif self.wait is not None and seconds * (waiting + tokens) / waiting > self.wait:
            why = f"{seconds:.1f} s of work wait, and {self.wait:g} s may"
        if why is not None:
            raise OverloadedError(f"too many requests: {why}; try again in {max(seconds, 1):.0f} s", seconds)


def moment_in(name: str, seconds: float | None) -> float:
    """Return the time of `time.monotonic` in so many seconds, which passed already if they are negative.

    Args:
        name: name of the argument, for the message.
        seconds: seconds from now; None for never, which is infinite.

    Raises:
        UsageError: not a number.
    """
    if seconds is None:
        return math.inf
    if not is_number(seconds):
        raise UsageError(f"{name} is {seconds!r}; wanted seconds from now, or None")
    return time.monotonic() + float(seconds)


def is_number(value: object) -> bool:
    """Return whether a value is a real number, which NaN and bool are not."""
    if type(value) is float:  # asking an abstract class takes ten times as long
        return not math.isnan(value)
    return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
