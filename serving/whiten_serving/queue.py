"""Hold the requests that wait, and form batches of their texts. No threads: callers hold a lock."""

import math
from collections.abc import Sequence
from itertools import count
from weakref import WeakKeyDictionary

import numpy as np

from whiten_runtime.inference.batching import Schedule, token_budget, workers_for
from whiten_runtime.inference.engine import Engine
from whiten_serving.fairness import Turns
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
        self.rate = Rate()  # of all batches, by their cost
        self.lane_seconds = 0.0  # that its batches took
        self.turn = 0  # number of its last batch
        self.failing_since: float | None = None  # since when no text at all is computed
        self._clients = Turns[str](schedule.budget)
        self._requests: dict[str, Turns[Request]] = {}  # that wait, by client

    @property
    def ready(self) -> bool:
        """Return whether texts wait of which a batch may be taken now."""
        return self.tokens > 0 and self.running < self.schedule.workers

    def seconds_for(self, tokens: int) -> float:
        """Return the time of one lane for tokens in full batches; 0 before the first batch."""
        return self.rate.seconds_for(tokens * (1 + RUN_SHARE))

    def stats(self, lanes: int) -> ModelStats:
        """Return what waits."""
        return ModelStats(sum(map(len, self._requests.values())), self.tokens, self.seconds_for(self.tokens) / lanes)

    def add(self, request: Request) -> None:
        """Queue a request behind the others of its client, and its client behind the others."""
        self._clients.add(request.client)
        if request.client not in self._requests:
            self._requests[request.client] = Turns(self.schedule.budget)
        self._requests[request.client].add(request)
        self.tokens += request.queued_tokens

    def take(self, request: Request, indices: list[int]) -> None:
        """Note that a lane takes some texts of a request."""
        chosen, tokens = set(indices), sum(request.lengths[index] for index in indices)
        request.waiting[:WINDOW] = [index for index in request.waiting[:WINDOW] if index not in chosen]
        request.queued_tokens -= tokens
        self.tokens -= tokens
        self._clients.charge(request.client, tokens)
        self._requests[request.client].charge(request, tokens)
        if not request.waiting:
            self._remove(request)

    def drop(self, request: Request) -> None:
        """Forget the texts of a request that wait."""
        self.tokens -= request.queued_tokens
        request.queued_tokens, request.waiting = 0, []
        self._remove(request)

    def _remove(self, request: Request) -> None:
        requests = self._requests[request.client]
        requests.remove(request)
        if not requests:
            del self._requests[request.client]
        if not self._requests:
            self._clients = Turns(self.schedule.budget)  # debts last while others wait

    def window(self, now: float, late: list[Request]) -> list[Item]:
        """Return up to `WINDOW` texts in the order of turns; note requests whose deadlines have passed."""
        items: list[Item] = []
        self._requests[self._clients.first(self._requests)].first()  # those whose turns are over go behind the others
        for client in self._clients:
            for request in self._requests.get(client, ()):
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

    def tokens_before(self, client: str, tokens: int) -> int:
        """Return the tokens that are computed before a request of a client, of so many tokens, has had its turns.

        Each request that waits goes before it with as many tokens as it has itself, at least a batch; and so does each
        other client, whatever the number of its requests.
        """
        least = max(tokens, self.schedule.budget)
        own = sum(min(request.queued_tokens, least) for request in self._requests.get(client, ()))
        others = (requests for name, requests in self._requests.items() if name != client)
        return own + sum(min(sum(one.queued_tokens for one in requests), own + least) for requests in others)


class Queue:
    """Queue of requests, which take turns, and of whose texts batches are formed.

    When a lane is free, it is the turn of the model that has had the least time of lanes, among those that may run
    another batch; then of one of its clients, and of one of the client's requests. The batch has the next text of this
    request, and those of like length among the texts that come next, the window. A turn lasts until as many tokens are
    taken as a full batch has, as a few texts of several lengths need several batches; what is more counts in the next
    turns of the client, whatever becomes of the request.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.seconds = 0.0  # of one lane, that the waiting work takes
        self._lines: WeakKeyDictionary[Engine, Line] = WeakKeyDictionary()
        self._turns = count(1)

    def line(self, runner: Engine) -> Line:
        """Return the line of a model."""
        line = self._lines.get(runner)
        if line is None:
            line = self._lines[runner] = Line(runner.schedule)
        return line

    @property
    def tokens(self) -> int:
        """Return the number of tokens that wait."""
        return sum([line.tokens for line in self._lines.values()])

    def add(self, request: Request) -> None:
        """Queue a request."""
        line = self.line(request.runner)
        if not line.tokens and not line.running:  # time that a model does not use is not saved up
            active = [other.lane_seconds for other in self._lines.values() if other.tokens or other.running]
            line.lane_seconds = max(line.lane_seconds, min(active, default=0.0))
        line.add(request)
        self.requests += 1
        self._measure()

    def drop(self, request: Request) -> None:
        """Forget the texts of a request that wait, if any do; the caller marks it as over."""
        if request.queued_tokens:
            self._lines[request.runner].drop(request)
            self.requests -= 1
            self._measure()

    def _measure(self) -> None:
        self.seconds = sum([line.seconds_for(line.tokens) for line in self._lines.values()])

    def seconds_before(self, runner: Engine, client: str, tokens: int) -> float:
        """Return the time of one lane until a request of so many tokens has had its turns, besides its own."""
        line = self.line(runner)
        own = line.seconds_for(line.tokens_before(client, tokens))
        most = own + line.seconds_for(max(tokens, line.schedule.budget))
        return own + sum(
            min(other.seconds_for(other.tokens), most) for other in self._lines.values() if other is not line
        )

    @property
    def ready(self) -> bool:
        """Return whether texts wait of which a batch may be taken now."""
        return any(line.ready for line in self._lines.values())

    def _next(self) -> Line | None:
        ready = (line for line in self._lines.values() if line.ready)
        return min(ready, key=lambda line: (line.lane_seconds, line.turn), default=None)

    def take(self, idle: int, now: float, late: list[Request]) -> Batch | None:
        """Take the next batch; None if no text may be taken. Requests found late are dropped, and noted in `late`.

        What it raises, for want of memory, leaves everything as it was, but for these.
        """
        while (line := self._next()) is not None:
            expired: list[Request] = []
            window = line.window(now, expired)
            if not expired:
                return self._taken(line, line.form(window, idle), now)
            late += expired
            for request in expired:
                self.drop(request)
        return None

    def _taken(self, line: Line, batch: Batch, now: float) -> Batch:
        line.turn = next(self._turns)
        line.running += 1
        for request, indices in batch.parts.items():
            request.started = request.started or now
            line.take(request, indices)
            self.requests -= not request.waiting
        self._measure()
        return batch

    def end(self, batch: Batch, seconds: float, share: float, computed: bool) -> None:
        """Note that a batch does not run any more, and how long it took.

        It took `share` lanes, more than one where the others cannot be used meanwhile.
        """
        line = self._lines[batch.runner]
        line.running -= 1
        line.lane_seconds += seconds * share
        if computed:
            line.rate.add(batch.cost, seconds * share)

    def seconds_of_request(self) -> float:
        """Return the time of the only request that waits, as far as is known; infinite if several wait, or none."""
        if self.requests != 1:
            return math.inf
        line = next(line for line in self._lines.values() if line.tokens)
        return line.rate.seconds_for(line.tokens + line.schedule.budget * RUN_SHARE) or math.inf


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
