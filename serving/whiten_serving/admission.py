"""Decide whether a request may wait: by the room of the queue, the work before it, and the time that is left."""

import math
from dataclasses import dataclass

from whiten_runtime.errors import UsageError
from whiten_runtime.ort.processor import thread_count
from whiten_serving.queue import Queue
from whiten_serving.requests import OverloadedError, Request, TooManyTokensError, is_number

MAX_QUEUE_TOKENS = 1_048_576
"""Number of tokens that may wait, which bounds their memory: 2,048 texts of 512 tokens, about 40 MB."""

_SHORT, _RESERVE = 2048, 1 / 8
"""Tokens of a short request, and share of the queue's limit that short ones have besides."""

_DOUBT = 2.0
"""Factor by which a measured rate may be too low, after short texts alone or beside other programs: work that may be
done in time is accepted, and measured anew."""


@dataclass
class Limits:
    """Bounds of the work that may wait for lanes.

    Raises:
        UsageError: a number is out of range.
    """

    lanes: int
    max_wait: float | None = None  # seconds of work that may go before a request; None for no bound
    max_queue_tokens: int = MAX_QUEUE_TOKENS

    def __post_init__(self) -> None:
        self.lanes = thread_count("lanes", self.lanes)
        if self.max_wait is not None and not (is_number(self.max_wait) and self.max_wait > 0):
            raise UsageError(f"max_wait is {self.max_wait!r}; wanted seconds greater than 0, or None")

    def may_refuse(self, queue: Queue) -> bool:
        """Return whether even a short request may be refused; an estimate that needs no lock."""
        crowded = queue.tokens >= self.max_queue_tokens * (1 + _RESERVE)
        return crowded or (self.max_wait is not None and queue.seconds / self.lanes > self.max_wait)

    def check(self, queue: Queue, request: Request, now: float) -> None:
        """Check that a request can be computed in time and finds room.

        If nothing of its model waits or runs, what one batch holds is not held up by the measured rate, but measures it
        anew: a rate of a moment in which the machine was busy or stood still would refuse everything for ever. It may
        miss its deadline; that costs one batch.

        Raises:
            OverloadedError: too much work waits already.
            TooManyTokensError: the request has more tokens than can be computed by its deadline, or than may wait.
        """
        tokens, left = request.tokens, request.deadline - now
        line = queue.line(request.runner)
        measures = line.idle and tokens <= line.schedule.budget
        seconds = 0.0 if measures else line.seconds_for(tokens)
        limit, why = self.max_queue_tokens, "is the limit of the queue"
        if seconds > _DOUBT * left * self.lanes > 0:
            limit, why = int(tokens * left * self.lanes / seconds), f"can be computed in the {left:.1f} s that are left"
        if tokens > limit:
            raise TooManyTokensError(
                f"the request has {tokens} tokens, and {limit} {why}; send at most {limit} tokens at once", limit
            )
        self.check_wait(queue, request.client, tokens, seconds, left)

    def check_wait(
        self, queue: Queue, client: str, tokens: int = 1, seconds: float = 0.0, left: float = math.inf
    ) -> None:
        """Raise OverloadedError if work of a client would wait for too long, or finds no room.

        Args:
            queue: what waits already.
            client: whose work it is.
            tokens: number of its tokens.
            seconds: time that it takes in one lane.
            left: seconds until its deadline.
        """
        most = self.max_queue_tokens * (1 + _RESERVE * (tokens <= _SHORT))
        waits, allowed = queue.seconds / self.lanes, math.inf if self.max_wait is None else self.max_wait
        if waits > min(allowed, _DOUBT * left - seconds / self.lanes):
            waits = queue.wait_for(seconds, client) / self.lanes
        if queue.tokens + tokens > most:
            why = f"the queue has {queue.tokens} tokens (limit {self.max_queue_tokens})"
        elif waits > allowed:
            why = f"{waits:.1f} s of work go before it (limit {allowed:g} s)"
        elif 0 < _DOUBT * left < waits + seconds / self.lanes:
            why = f"{waits:.1f} s of work go before it, and {left:.1f} s are left"
        else:
            return
        waits = max(waits, queue.seconds / self.lanes)
        raise OverloadedError(f"too many requests: {why}; try again in {max(waits, 1):.0f} s", waits)
