"""Hold the requests that wait, form batches of their texts, and count them. No threads: callers hold a lock."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from numbers import Real
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import UsageError, WhitenError
from whiten_runtime.inference.batching import Schedule, token_budget, workers_for
from whiten_runtime.inference.engine import Engine, TokenizedTexts
from whiten_serving.fairness import Turns

RUN_SHARE = 1 / 24
"""Cost of a run besides that of its padded tokens, as a share of the tokens of a full batch: 11 tokens of 256, measured
with all-MiniLM-L6-v2 in int8."""

WINDOW = 256
"""Number of texts, those whose turns come next, from which a batch is formed: about ten batches of short texts."""

_SHORTEST = np.array([[0.0], [0.5], [0.7], [0.85]])
"""Four limits for how short the shortest text of a batch may be, as a fraction of the longest. `companions` tries each,
and the first text's own length, and takes the batch with the most tokens for its cost."""

_MEMORY = 0.9
"""Share of the earlier measurements that a rate keeps with each batch: about the last ten count."""


class OverloadedError(WhitenError):
    """Raised when a request is refused because too much work waits already.

    Attributes:
        retry_after: seconds until the work that waits is done, at the rate measured so far.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.retry_after)


class TooManyTokensError(WhitenError, ValueError):
    """Raised when a request has more tokens than may wait of one request.

    Attributes:
        limit: number of tokens that a request may have.
    """

    def __init__(self, message: str, limit: int) -> None:
        super().__init__(message)
        self.limit = limit

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.limit)


class DeadlineExceededError(WhitenError, TimeoutError):
    """Raised when a request was not computed by its deadline."""


Finish = Callable[[NDArray[np.float32]], NDArray[Any]]
"""Function that makes a caller's vectors of those of the graph: cut, normalised, quantised."""


@dataclass(eq=False, slots=True)
class Request:
    """The texts of one call, and the vectors computed of them so far. The scheduler's lock guards it."""

    runner: Engine
    texts: TokenizedTexts  # different ones
    finish: Finish  # applied to all vectors, float32 [n, k], when the last one is computed
    done: "Callable[[Request], object]"  # called once, in a lane, when there is a result or an error
    deadline: float = math.inf  # time of time.monotonic, as the three below
    client: str = ""  # whose it is: clients take turns, and the requests of each
    places: list[int] | None = None  # index of each text of the call among those; None if they are the same
    submitted: float = 0.0
    started: float = 0.0  # when a lane took its first text
    ended: float = 0.0  # when its last text was computed
    lengths: list[int] = field(init=False)  # tokens of each text; an empty one counts as one
    tokens: int = field(init=False)
    queued_tokens: int = field(init=False)  # tokens that no lane has taken
    waiting: list[int] = field(init=False)  # indices of the texts that no lane has taken
    left: int = field(init=False)  # texts that are not computed
    finished: bool = False  # it has its outcome, or its caller has gone
    result: NDArray[Any] | None = None
    error: Exception | None = None
    vectors: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        self.lengths = [len(row) or 1 for row in self.texts.ids]
        self.tokens = self.queued_tokens = sum(self.lengths)
        self.left = len(self.lengths)
        self.waiting = list(range(self.left))

    @property
    def asked_tokens(self) -> int:
        """Return the tokens of all texts of the call, equal ones too."""
        return self.tokens if self.places is None else sum(self.lengths[place] for place in self.places)

    def store(self, indices: list[int], vectors: NDArray[np.float32]) -> bool:
        """Take the vectors of some of its texts, and return whether all are there."""
        if len(indices) == len(self.lengths):
            self.vectors = vectors
        else:
            if self.vectors is None:
                self.vectors = np.empty((len(self.lengths), vectors.shape[1]), np.float32)
            self.vectors[indices] = vectors
        self.left -= len(indices)
        return self.left == 0

    def complete(self) -> None:
        """Finish the vectors if all are there, or keep the error that finishing them raises."""
        self.ended = time.monotonic()
        try:
            if self.error is None and self.vectors is not None:
                vectors = self.finish(self.vectors)
                self.result = vectors if self.places is None else vectors[self.places]
        except Exception as error:
            self.error = error


Item = tuple[Request, int]
"""One text: its request, and its index there."""


@dataclass(frozen=True)
class Batch:
    """Texts that are computed together: those of one graph whose prompts are equally long."""

    parts: dict[Request, list[int]]  # indices of the texts of each request; the rows of the batch are in this order
    texts: int
    tokens: int
    padding: int

    @classmethod
    def of(cls, items: Iterable[Item]) -> "Batch":
        """Return a batch of these texts."""
        parts: dict[Request, list[int]] = {}
        for request, index in items:
            parts.setdefault(request, []).append(index)
        lengths = [request.lengths[index] for request, indices in parts.items() for index in indices]
        tokens = sum(lengths)
        return cls(parts, len(lengths), tokens, len(lengths) * max(lengths, default=0) - tokens)

    @property
    def runner(self) -> Engine:
        """Return what computes the batch."""
        return next(iter(self.parts)).runner

    @property
    def cost(self) -> float:
        """Return what the batch costs, in tokens: those of the texts, padding, and the run itself."""
        return self.tokens + self.padding + self.runner.schedule.budget * RUN_SHARE

    def run(self, alone: bool) -> NDArray[np.float32]:
        """Compute the vectors of the texts, float32 [n, k], in their order."""
        ids = [request.texts.ids[index] for request, indices in self.parts.items() for index in indices]
        prompt_tokens = next(iter(self.parts)).texts.prompt_tokens
        return self.runner.run_batch(ids, prompt_tokens, side_by_side=not alone)


@dataclass
class BatcherCounters:
    """Counts since the lanes were made.

    Attributes:
        texts: texts that were computed.
        tokens: tokens of these texts, without padding.
        padding: tokens of padding that were computed.
        batches: batches that were computed.
        rejected: requests refused because too much waited.
        cancelled: requests cancelled before they were computed.
        expired: requests whose deadline passed before they were computed.
    """

    texts: int = 0
    tokens: int = 0
    padding: int = 0
    batches: int = 0
    rejected: int = 0
    cancelled: int = 0
    expired: int = 0


@dataclass(frozen=True)
class BatcherStats:
    """Counts what waits and runs at one moment, and what was done so far.

    Attributes:
        lanes: batches that can run at once.
        lanes_busy: batches that run.
        queue_requests: requests of which texts wait.
        queue_tokens: tokens that wait.
        queue_seconds: time that the waiting work takes, each model's at the rate of its last batches; 0 before them.
        oldest_seconds: time for which the oldest of the running batches has run; 0 if none runs.
        counted: counts since the lanes were made.
    """

    lanes: int
    lanes_busy: int
    queue_requests: int
    queue_tokens: int
    queue_seconds: float
    oldest_seconds: float = 0.0
    counted: BatcherCounters = field(default_factory=BatcherCounters)


@dataclass(frozen=True)
class ModelStats:
    """Counts what waits of one model at one moment."""

    requests: int  # of which texts wait
    tokens: int  # that wait
    seconds: float  # time that they take; 0 before the first batch


@dataclass
class Rate:
    """Measures the rate of one lane by its last batches."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        """Add a batch."""
        self.tokens = self.tokens * _MEMORY + tokens
        self.seconds = self.seconds * _MEMORY + seconds

    def seconds_for(self, tokens: float) -> float:
        """Return the time that tokens take; 0 before the first batch."""
        return tokens * self.seconds / self.tokens if self.tokens else 0.0


def is_number(value: object) -> bool:
    """Return whether a value is a real number, which NaN and bool are not."""
    return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)


def moment_in(name: str, seconds: float | None) -> float:
    """Return the time of `time.monotonic` in so many seconds; infinite for None."""
    if seconds is None:
        return math.inf
    if not is_number(seconds):
        raise UsageError(f"{name} is {seconds!r}; wanted seconds from now, or None")
    return time.monotonic() + float(seconds)


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
        self.first()  # requests whose turns are over go behind the others
        for client in self._clients:
            for request in self._requests.get(client, ()):
                if now >= request.deadline:
                    late.append(request)
                    continue
                items += [(request, index) for index in request.waiting[: WINDOW - len(items)]]
                if len(items) == WINDOW:
                    return items
        return items

    def first(self) -> Request:
        """Return the request whose turn it is."""
        return self._requests[self._clients.first(self._requests)].first()

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
        self._waiting: dict[Line, None] = {}  # those of which texts wait: a weak dictionary is slow to go through
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
        return sum([line.tokens for line in self._waiting])

    def add(self, request: Request) -> None:
        """Queue a request."""
        line = self.line(request.runner)
        if not line.tokens and not line.running:  # time that a model does not use is not saved up
            active = [other.lane_seconds for other in self._lines.values() if other.tokens or other.running]
            line.lane_seconds = max(line.lane_seconds, min(active, default=0.0))
        line.add(request)
        self.requests += 1
        self._count(line)

    def drop(self, request: Request) -> None:
        """Forget the texts of a request that wait, if any do; the caller marks it as over."""
        if request.queued_tokens:
            line = self._lines[request.runner]
            line.drop(request)
            self.requests -= 1
            self._count(line)

    def _count(self, line: Line) -> None:
        if line.tokens:
            self._waiting[line] = None
        else:
            self._waiting.pop(line, None)
        self.seconds = sum([line.seconds_for(line.tokens) for line in self._waiting])

    def seconds_before(self, runner: Engine, client: str, tokens: int) -> float:
        """Return the time of one lane until a request of so many tokens has had its turns, besides its own."""
        line = self.line(runner)
        own = line.seconds_for(line.tokens_before(client, tokens))
        most = own + line.seconds_for(max(tokens, line.schedule.budget))
        return own + sum(min(other.seconds_for(other.tokens), most) for other in self._waiting if other is not line)

    @property
    def ready(self) -> bool:
        """Return whether texts wait of which a batch may be taken now."""
        return any(line.ready for line in self._waiting)

    def first(self) -> Request | None:
        """Return the request of the next batch; None if none may be taken."""
        line = self._next()
        return None if line is None else line.first()

    def _next(self) -> Line | None:
        ready = (line for line in self._waiting if line.ready)
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
        self._count(line)
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
        (line,) = self._waiting
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
