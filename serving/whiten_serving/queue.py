"""Hold the requests that wait, and form batches of their texts. No threads: callers hold a lock."""

import math
from collections.abc import Sequence
from itertools import count
from weakref import WeakKeyDictionary

import numpy as np

from whiten_runtime.inference.batching import Schedule, token_budget, workers_for
from whiten_runtime.inference.engine import Engine
from whiten_serving.requests import RUN_SHARE, Batch, Item, ModelStats, Rate, Request

WINDOW = 256
"""Number of texts, those whose turns come next, from which a batch is formed: about ten batches of short texts."""

_SHORTEST = np.array([[0.0], [0.5], [0.7], [0.85]])
"""Four limits for how short the shortest text of a batch may be, as a fraction of the longest. `companions` tries each,
and the first text's own length, and takes the batch with the most tokens for its cost."""


class Line:
    """Requests of one model that wait, by client, and the number of its batches that run."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.running = 0
        self.tokens = 0  # that wait
        self.turn = 0  # number of the last batch that was its own
        self.rate = Rate()  # of all batches, by their cost
        self.single = Rate()  # of batches of one text, by their tokens
        self.clients: dict[str, dict[Request, None]] = {}  # whose turn it is first, then the others

    @property
    def idle(self) -> bool:
        """Return whether nothing waits or runs."""
        return not self.tokens and not self.running

    @property
    def ready(self) -> bool:
        """Return whether texts wait of which a batch may be taken now."""
        return self.tokens > 0 and self.running < self.schedule.workers

    def seconds_for(self, tokens: int) -> float:
        """Return the time of one lane for tokens in full batches; 0 before the first batch."""
        return self.rate.seconds_for(tokens * (1 + RUN_SHARE))

    def stats(self, lanes: int) -> ModelStats:
        """Return what waits, and at which rate so many lanes compute it."""
        requests, second = sum(map(len, self.clients.values())), self.seconds_for(1)
        seconds = self.seconds_for(self.tokens) / lanes
        return ModelStats(requests, self.tokens, seconds, lanes / second if second else 0.0)

    def remove(self, request: Request) -> None:
        """Forget a request of which no text waits any more."""
        requests = self.clients[request.client]
        del requests[request]
        if not requests:
            del self.clients[request.client]

    def first(self) -> Request:
        """Return the request whose turn it is."""
        return next(iter(next(iter(self.clients.values()))))

    def pass_turn(self, request: Request) -> None:
        """Put a client behind the others, and its request behind those of the same client."""
        request.turn_tokens -= self.schedule.budget
        requests = self.clients.pop(request.client)
        del requests[request]
        requests[request] = None
        self.clients[request.client] = requests

    def window(self, now: float, late: list[Request]) -> list[Item]:
        """Return up to `WINDOW` texts in the order of turns; note requests whose deadlines have passed."""
        items: list[Item] = []
        for requests in self.clients.values():
            for request in requests:
                if now >= request.deadline:
                    late.append(request)
                    continue
                items += [(request, index) for index in request.waiting[: WINDOW - len(items)]]
                if len(items) == WINDOW:
                    return items
        return items

    def form(self, window: list[Item], idle: int) -> Batch:
        """Return a batch of the first text and others of the window."""
        schedule, prompt_tokens = self.schedule, window[0][0].texts.prompt_tokens
        places = [place for place, (one, _) in enumerate(window) if one.texts.prompt_tokens == prompt_tokens]
        lengths = [request.lengths[index] for request, index in (window[place] for place in places)]
        idle = min(idle, schedule.workers - self.running) if schedule.split else 1
        workers = workers_for(lengths, idle, schedule.worker_tokens)
        most = schedule.budget if workers == 1 else token_budget(lengths, workers, schedule.budget)
        chosen = sorted(companions(lengths, most, schedule.budget, schedule.pairs))
        return Batch.of(window[places[number]] for number in chosen)

    def wait_for(self, seconds: float, client: str) -> float:
        """Return the time of one lane until work of so many seconds has had its turns, besides the work itself.

        Each request that waits goes before it with as much work as it has itself, at least a batch; and so does each
        other client, whatever the number of its requests.
        """
        least = max(seconds, self.seconds_for(self.schedule.budget))
        times = {
            name: [self.seconds_for(request.queued_tokens) for request in requests]
            for name, requests in self.clients.items()
        }
        own = sum(min(one, least) for one in times.pop(client, ()))
        return own + sum(min(sum(others), own + least) for others in times.values())


class Queue:
    """Queue of requests, which take turns, and of whose texts batches are formed.

    When a lane is free, it is the turn of the model that has had none for the longest time, among those that may run
    another batch; then of one of its clients, and of one of the client's requests, in the same way. The batch has the
    next text of this request, and those of like length among the texts that come next, the window. The request keeps
    its turn until as many of its tokens are taken as a full batch has, as a few texts of several lengths need several
    batches; what is more counts in its next turn (deficit round robin: Shreedhar and Varghese, 1996). So a text
    waits for the tokens of a full batch, or nearly two, of each request that waits, whatever their work.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.requests = 0
        self.seconds = 0.0  # of one lane, that the waiting work takes
        self._lines: WeakKeyDictionary[Engine, Line] = WeakKeyDictionary()
        self._waiting: dict[Line, None] = {}  # those of which texts wait
        self._turns = count(1)

    def line(self, runner: Engine) -> Line:
        """Return the line of a model."""
        line = self._lines.get(runner)
        if line is None:
            line = self._lines[runner] = Line(runner.schedule)
        return line

    def add(self, request: Request) -> None:
        """Queue a request behind the others of its client."""
        line = self.line(request.runner)
        line.clients.setdefault(request.client, {})[request] = None
        self.requests += 1
        self._count(line, request.queued_tokens)

    def drop(self, request: Request) -> None:
        """Forget the texts of a request that wait, if any do; the caller marks it as over."""
        if request.queued_tokens:
            line, tokens = self._lines[request.runner], request.queued_tokens
            if request.started and request is line.first():  # else a client who drops requests would keep its turn
                line.pass_turn(request)
            line.remove(request)
            request.queued_tokens, request.waiting = 0, []
            self.requests -= 1
            self._count(line, -tokens)

    def _count(self, line: Line, tokens: int) -> None:
        self.tokens += tokens
        line.tokens += tokens
        if line.tokens:
            self._waiting[line] = None
        else:
            self._waiting.pop(line, None)
        self.seconds = sum([one.seconds_for(one.tokens) for one in self._waiting])

    def wait_for(self, seconds: float, client: str) -> float:
        """Return the time of one lane until work of so many seconds has had its turns, besides the work itself."""
        return sum(line.wait_for(seconds, client) for line in self._waiting)

    @property
    def ready(self) -> bool:
        """Return whether texts wait of which a batch may be taken now."""
        return any(line.ready for line in self._waiting)

    def first(self) -> Request | None:
        """Return the request of the next batch; None if none may be taken."""
        line = self._next()
        return None if line is None else line.first()

    def _next(self) -> Line | None:
        return min((line for line in self._waiting if line.ready), key=lambda line: line.turn, default=None)

    def take(self, idle: int, now: float, late: list[Request]) -> Batch | None:
        """Take the next batch; None if no text may be taken. Requests found late are dropped, and noted in `late`.

        What it raises, for want of memory, leaves everything as it was, but for these.
        """
        while (line := self._next()) is not None:
            found: list[Request] = []
            window = line.window(now, found)
            if not found:
                return self._taken(line, line.form(window, idle), window[0][0], now)
            late += found
            for request in found:
                self.drop(request)
        return None

    def _taken(self, line: Line, batch: Batch, first: Request, now: float) -> Batch:
        """Note that a batch is taken in the turn of a request."""
        left = {
            request: [index for index in request.waiting[:WINDOW] if index not in indices]
            for request, indices in ((request, set(indices)) for request, indices in batch.parts.items())
        }
        line.turn = next(self._turns)
        line.running += 1
        for request, indices in batch.parts.items():
            request.started = request.started or now
            request.waiting[:WINDOW] = left[request]
            tokens = sum(request.lengths[index] for index in indices)
            request.queued_tokens -= tokens
            request.turn_tokens += tokens if request is first else 0
        if not first.waiting or first.turn_tokens >= line.schedule.budget:
            line.pass_turn(first)
        for request in batch.parts:
            if not request.waiting:
                line.remove(request)
                self.requests -= 1
        self._count(line, -batch.tokens)
        return batch

    def end(self, batch: Batch, seconds: float | None = None, share: float = 1.0) -> None:
        """Note that a batch does not run any more, and how long it took if it was computed.

        It took `share` lanes, more than one where the others cannot be used meanwhile.
        """
        line = self._lines[batch.runner]
        line.running -= 1
        if seconds is not None:
            line.rate.add(batch.cost, seconds * share, line.schedule.workers)
            if batch.texts == 1:
                line.single.add(batch.tokens, seconds)

    def seconds_of_text(self) -> float:
        """Return the time of the text that waits, as far as is known; infinite if several wait, or none."""
        if self.requests != 1:
            return math.inf
        (line,) = self._waiting
        return line.single.seconds_for(line.tokens) or math.inf


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
