"""Measure how fast lanes compute, so that work that waits can be told in seconds."""

_MEMORY = 0.95
"""Share of the earlier measurements that is kept with each new batch: about the last twenty batches count. With
fewer, too much is accepted whenever some batches happen to be fast."""


class Rate:
    """Measures tokens a second of one lane over its last batches. Callers hold a lock.

    Attributes:
        tokens: tokens of the batches that count, weighted.
        seconds: their time, weighted; 0 before the first batch.
    """

    def __init__(self) -> None:
        self.tokens = 0.0
        self.seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Take one batch into account."""
        self.tokens = self.tokens * _MEMORY + tokens
        self.seconds = self.seconds * _MEMORY + seconds

    def seconds_for(self, tokens: int, lanes: int) -> float:
        """Return the time that tokens take on so many lanes; 0 before the first batch."""
        return 0.0 if not self.tokens else tokens * self.seconds / self.tokens / lanes
