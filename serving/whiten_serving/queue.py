"""Hold the requests that wait, and form batches of their texts. No threads: callers hold a lock."""

import math
import time
from collections import deque
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from whiten_runtime.inference.batching import Schedule, token_budget, workers_for
from whiten_runtime.inference.engine import Engine
from whiten_serving.requests import Batch, Item, Rate, Request

WINDOW = 256
"""Number of texts, the oldest ones, from which a batch is formed: about ten batches of short texts."""

RUN_SHARE = 1 / 24
"""Cost of a run besides that of its padded tokens, as a share of the tokens of a full batch: 11 tokens of 256, measured
with all-MiniLM-L6-v2 in int8."""

_SHORTEST = np.array([[0.0], [0.5], [0.7], [0.85]])
"""Lengths of the shortest text of a batch, relative to the longest, of which the best one is taken; another is that of
the first text itself. Of all batches, even the best is hardly better: tests compare them."""


class Line:
    """Queue of the requests of one model, with the number of its batches that run."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.running = 0
        self.tokens = 0  # that wait
        self.single = Rate()  # of batches of one text
        self.window: list[Item] = []
        self.rest: deque[Request] = deque()

    @property
    def ready(self) -> bool:
        """Return whether texts wait of which a batch may be taken now."""
        return self.tokens > 0 and self.running < self.schedule.workers

    def fill(self) -> list[Item]:
        """Fill the window with the oldest texts that somebody still waits for, and return it."""
        self.window = [item for item in self.window if not item[0].finished]
        while self.rest and len(self.window) < WINDOW:
            request = self.rest[0]
            end = min(len(request.lengths), request.in_window + WINDOW - len(self.window))
            if not request.finished:
                self.window += [(request, index) for index in range(request.in_window, end)]
                request.in_window = end
            if request.finished or end == len(request.lengths):
                self.rest.popleft()
        return self.window

    def form(self, idle: int) -> tuple[Batch, list[Item]]:
        """Return a batch of the oldest text and others of the window, and what is left there."""
        schedule, prompt_tokens = self.schedule, self.window[0][0].texts.prompt_tokens
        places = [place for place, (one, _) in enumerate(self.window) if one.texts.prompt_tokens == prompt_tokens]
        lengths = [request.lengths[index] for request, index in (self.window[place] for place in places)]
        idle = min(idle, schedule.workers - self.running) if schedule.split else 1
        workers = workers_for(lengths, idle, schedule.worker_tokens)
        most = schedule.budget if workers == 1 else token_budget(lengths, workers, schedule.budget)
        chosen = {places[number] for number in companions(lengths, most, schedule.budget, schedule.pairs)}
        batch = Batch.of(item for place, item in enumerate(self.window) if place in chosen)
        return batch, [item for place, item in enumerate(self.window) if place not in chosen]


class Queue:
    """Queue of requests, those of each model first in first out, which forms batches of their texts.

    A batch is formed when a lane is free, for the model whose text is the oldest among those that may run another one:
    it has that text, and those of like length among the oldest ones of this model, the window. So no text is overtaken
    by more than the texts of the window before it, and by those of other models while its own runs all it may.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.requests = 0
        self._lines: WeakKeyDictionary[Engine, Line] = WeakKeyDictionary()

    def add(self, request: Request) -> None:
        """Queue a request behind all others."""
        if request.runner not in self._lines:
            self._lines[request.runner] = Line(request.runner.schedule)
        line = self._lines[request.runner]
        line.rest.append(request)
        line.tokens += request.queued_tokens
        self.tokens += request.queued_tokens
        self.requests += 1

    def drop(self, request: Request) -> None:
        """Forget the texts of a request that wait, if any do; the caller marks it as over."""
        if request.queued_tokens:
            self._lines[request.runner].tokens -= request.queued_tokens
            self.tokens -= request.queued_tokens
            self.requests -= 1
            request.queued_tokens = 0

    def expired(self, now: float) -> list[Request]:
        """Return requests of the windows whose deadline has passed."""
        windows = [line.fill() for line in self._lines.values()]
        return list({request: None for window in windows for request, _ in window if now >= request.deadline})

    @property
    def ready(self) -> bool:
        """Return whether texts wait of which a batch may be taken now."""
        return any(line.ready for line in self._lines.values())

    def oldest(self) -> Request | None:
        """Return the request whose text is in the next batch; None if none may be taken."""
        first = (line.fill()[0][0] for line in self._lines.values() if line.ready)
        return min(first, key=lambda request: request.submitted, default=None)

    def take(self, idle: int) -> Batch | None:
        """Take the next batch; None if no text may be taken.

        What it raises, for want of memory, leaves everything as it was.
        """
        oldest = self.oldest()
        if oldest is None:
            return None
        line = self._lines[oldest.runner]
        batch, window = line.form(idle)
        taken = [(request, sum([request.lengths[index] for index in some])) for request, some in batch.parts.items()]
        now = time.monotonic()
        line.window = window
        line.running += 1
        line.tokens -= batch.tokens
        self.tokens -= batch.tokens
        for request, tokens in taken:
            request.started = request.started or now
            request.queued_tokens -= tokens
            self.requests -= request.queued_tokens == 0
        return batch

    def end(self, batch: Batch, seconds: float | None = None) -> None:
        """Note that a batch does not run any more, and how long it took if it was computed."""
        line = self._lines[batch.runner]
        line.running -= 1
        if seconds is not None and batch.texts == 1:
            line.single.add(batch.tokens, seconds)

    def seconds_of_text(self) -> float:
        """Return the time of the text that waits, as far as is known; infinite if several wait, or none."""
        lines = [line for line in self._lines.values() if line.tokens]
        if len(lines) != 1 or self.requests != 1:
            return math.inf
        return lines[0].single.seconds_for(lines[0].tokens) or math.inf


def companions(lengths: Sequence[int], budget: int, full: int, pairs: int | None = None) -> list[int]:
    """Return the indices of texts that form a batch with the first: those with the most tokens for what they cost.

    The cost is that of padded tokens, at most `budget` unless the first text alone has more, and of the run. There are
    at most `pairs` pairs of tokens, of the texts times the square of the longest, unless the first text has more.
    """
    if len(lengths) == 1:  # single-text requests should not wait
        return [0]
    order = np.argsort(lengths, kind="stable")
    tokens = np.asarray(lengths)[order]
    place = int(order.argmin())  # of the first text
    ends = np.arange(1, len(tokens) + 1)  # a batch has neighbours in the order of lengths, from a start to an end
    rows = budget // tokens if pairs is None else np.minimum(budget // tokens, pairs // tokens**2)
    least = np.searchsorted(tokens, tokens * _SHORTEST)
    starts = np.maximum(ends - np.maximum(rows, 1), np.vstack([least, np.full(len(tokens), place)]))
    sums = np.zeros(len(tokens) + 1, np.intp)
    tokens.cumsum(out=sums[1:])
    useful = (sums[ends] - sums[starts]) / ((ends - starts) * tokens + full * RUN_SHARE)
    useful[(starts > place) | (ends <= place)] = 0
    row, end = divmod(int(useful.argmax()), len(tokens))
    places: list[int] = order[starts[row, end] : end + 1].tolist()
    return places
