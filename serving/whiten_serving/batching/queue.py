"""Queue requests, and plan batches of texts of like length. No threads here: callers hold the lanes' lock."""

from collections import deque

from whiten_runtime.inference.batching import token_budget, workers_for
from whiten_serving.batching.batch import Batch, Item
from whiten_serving.batching.grouping import grouped
from whiten_serving.batching.request import Request

WINDOW = 256
"""Number of texts, the oldest ones, that are planned together: about ten batches of short texts."""


class Queue:
    """Holds the requests that wait, first in first out, window by window.

    The oldest texts, a window of them, are planned together: those of like length share a batch. A window is planned
    when the one before it was taken, so nothing waits longer than the window before it and its own.

    Args:
        window: number of texts of a window.

    Attributes:
        tokens: number of tokens that wait.
        requests: number of requests of which texts wait.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._size = window
        self.clear()

    def clear(self) -> None:
        """Forget everything that waits."""
        self._planned: deque[Batch] = deque()
        self._rest: deque[Request] = deque()
        self._dropped = 0  # of the rest
        self.tokens = 0
        self.requests = 0

    def __bool__(self) -> bool:
        return self.tokens > 0

    def add(self, request: Request) -> None:
        """Queue a request behind all others."""
        self._rest.append(request)
        self.tokens += request.waiting
        self.requests += 1

    def drop(self, request: Request) -> None:
        """Forget the texts of a request that wait; does nothing if none do."""
        if request.waiting:
            self.tokens -= request.waiting
            self.requests -= 1
            request.waiting = 0
            self._dropped += request.next < len(request.texts.ids)
            if self._dropped > len(self._rest) // 2:  # those who come and go must not fill the memory
                self._rest = deque(kept for kept in self._rest if kept.waiting)
                self._dropped = 0

    def waiting(self, idle: int, budget: int) -> Batch | None:
        """Return the next batch, which `take` then takes; None if no text waits.

        Args:
            idle: number of lanes that could run batches now, the caller's among them. What waits is divided among
                them, as a call of `encode` is.
            budget: number of padded tokens of a batch at most, unless it is a single text.
        """
        while self:
            if not self._planned:
                self._planned.extend(_planned(self._window(), idle, budget))
            batch = self._planned.popleft().alive()
            if batch is not None:
                self._planned.appendleft(batch)
                return batch
        self._planned.clear()
        return None

    def take(self, idle: int, budget: int) -> Batch | None:
        """Take the next batch, as `waiting` returns it."""
        batch = self.waiting(idle, budget)
        if batch is None:
            return None
        self._planned.popleft()
        for item in batch.items:
            item.request.waiting -= item.length
            self.requests -= item.request.waiting == 0
        self.tokens -= batch.tokens
        return batch

    def _window(self) -> list[Item]:
        """Return the oldest texts that wait and were not planned yet."""
        window: list[Item] = []
        while self._rest and len(window) < self._size:
            request = self._rest[0]
            if request.waiting:
                end = min(len(request.texts.ids), request.next + self._size - len(window))
                window += [Item(request, index) for index in range(request.next, end)]
                request.next = end
            else:
                self._dropped -= 1
            if not request.waiting or request.next == len(request.texts.ids):
                self._rest.popleft()
        return window


def _planned(window: list[Item], idle: int, budget: int) -> list[Batch]:
    """Return the batches of a window, in the order of the oldest text of each."""
    batches: list[tuple[int, Batch]] = []
    places: dict[tuple[int, int], list[int]] = {}
    for place, item in enumerate(window):
        places.setdefault(item.request.key, []).append(place)
    for same in places.values():
        lengths = [window[place].length for place in same]
        workers = workers_for(lengths, idle)
        for group in grouped(lengths, budget if workers == 1 else token_budget(lengths, workers, budget)):
            rows = sorted(same[index] for index in group)
            batches.append((rows[0], Batch.of([window[row] for row in rows])))
    return [batch for _, batch in sorted(batches, key=lambda entry: entry[0])]
