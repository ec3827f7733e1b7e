"""Test the order in which texts that wait are computed, and what is counted meanwhile."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.runners import FakeRunner, request_of
from whiten_serving.batching.batch import Batch
from whiten_serving.batching.queue import WINDOW, Queue
from whiten_serving.batching.request import Request

RUNNERS = FakeRunner(), FakeRunner()
BUDGET = 64
TOLERATED = 1.25
"""Padded tokens of a batch relative to the budget, where all that waits is one batch."""

lengths = st.lists(st.integers(0, 40), min_size=1, max_size=30)


@dataclass
class Arrived:
    """Says which texts of a request were taken."""

    request: Request
    first: int
    taken: set[int] = field(default_factory=set)


class Traffic(RuleBasedStateMachine):
    """Adds, drops and takes in any order, with a window of eight texts."""

    SIZE = 8

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue(self.SIZE)
        self.arrived: dict[int, Arrived] = {}
        self.dropped: set[int] = set()
        self.texts = 0

    @rule(texts=lengths, runner=st.sampled_from(RUNNERS), prompt_tokens=st.integers(0, 2))
    def add(self, texts: list[int], runner: FakeRunner, prompt_tokens: int) -> None:
        request = request_of(runner, *([1] * length for length in texts), prompt_tokens=prompt_tokens)
        self.arrived[id(request)] = Arrived(request, self.texts)
        self.texts += len(texts)
        self.queue.add(request)

    @precondition(lambda self: self.arrived)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.arrived)))
        self.queue.drop(self.arrived[key].request)
        self.dropped.add(key)

    @rule(idle=st.integers(1, 4), times=st.integers(1, 9))
    def take(self, idle: int, times: int) -> None:
        for _ in range(times):
            waiting = self.queue.waiting(idle, BUDGET)
            batch = self.queue.take(idle, BUDGET)
            assert batch == waiting
            if batch is None:
                assert not self.queue
                return
            self.check(batch)
            for item in batch.items:
                arrived = self.arrived[id(item.request)]
                assert item.index not in arrived.taken
                arrived.taken.add(item.index)

    def check(self, batch: Batch) -> None:
        """Check what is in a batch, and that no older text than those of its window waits still."""
        assert len({item.request.key for item in batch.items}) == 1
        assert not any(id(item.request) in self.dropped for item in batch.items)
        longest = max(item.length for item in batch.items)
        padded = len(batch.items) * longest
        assert padded == batch.tokens + batch.padding
        assert batch.tokens == sum(item.length for item in batch.items)
        assert len(batch.items) == 1 or padded <= BUDGET * TOLERATED
        places = [self.arrived[id(item.request)].first + item.index for item in batch.items]
        assert places == sorted(places)
        for key, arrived in self.arrived.items():
            if key not in self.dropped:
                waiting = set(range(len(arrived.request.texts.ids))) - arrived.taken
                if waiting:
                    behind = max(places) - (arrived.first + min(waiting))
                    assert behind - self.gone_between(arrived, max(places)) < self.SIZE

    def gone_between(self, arrived: Arrived, last: int) -> int:
        """Return the number of texts of dropped requests between a request and the text at a place."""
        return sum(
            len(other.request.texts.ids)
            for name, other in self.arrived.items()
            if name in self.dropped and arrived.first < other.first < last
        )

    @invariant()
    def counts(self) -> None:
        tokens = requests = 0
        for key, arrived in self.arrived.items():
            ids = arrived.request.texts.ids
            waiting = [] if key in self.dropped else [i for i in range(len(ids)) if i not in arrived.taken]
            tokens += sum(max(len(ids[i]), 1) for i in waiting)
            requests += bool(waiting)
            assert arrived.request.waiting == sum(max(len(ids[i]), 1) for i in waiting)
        assert (self.queue.tokens, self.queue.requests, bool(self.queue)) == (tokens, requests, tokens > 0)


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


@given(st.lists(lengths, max_size=20), st.integers(1, 4), st.integers(1, 200))
@settings(deadline=None)
def test_every_text_is_taken_once(requests: list[list[int]], idle: int, budget: int) -> None:
    queue = Queue(16)
    queued = [request_of(RUNNERS[0], *([1] * length for length in texts)) for texts in requests]
    for request in queued:
        queue.add(request)
    taken = []
    while (batch := queue.take(idle, budget)) is not None:
        taken += [(queued.index(item.request), item.index) for item in batch.items]
    assert sorted(taken) == [(number, index) for number, texts in enumerate(requests) for index in range(len(texts))]
    assert (queue.tokens, queue.requests) == (0, 0)


def test_a_window_is_taken_before_the_next_one() -> None:
    """Fill two windows with long texts and short ones: the short ones of the second wait for all of the first."""
    queue, runner = Queue(), FakeRunner()
    for length in ([40, 2] * (WINDOW // 2)) * 2:
        queue.add(request_of(runner, [1] * length))
    order = []
    first = {id(request) for request in list(queue._rest)[:WINDOW]}
    while (batch := queue.take(2, 256)) is not None:
        order += [id(item.request) in first for item in batch.items]
    assert order == [True] * WINDOW + [False] * WINDOW


def test_texts_of_like_length_share_a_batch() -> None:
    queue, runner = Queue(), FakeRunner()
    for length in [40, 2] * 32:
        queue.add(request_of(runner, [1] * length))
    batches = []
    while (batch := queue.take(2, 256)) is not None:
        batches.append(batch)
    assert sum(batch.padding for batch in batches) < 0.1 * 42 * 32


def test_requests_that_come_and_go_do_not_pile_up() -> None:
    """Drop each request behind one that waits: a client that connects and leaves must not fill the memory."""
    queue, runner = Queue(), FakeRunner()
    queue.add(request_of(runner, [1]))
    for _ in range(1000):
        leaving = request_of(runner, [1, 2])
        queue.add(leaving)
        queue.drop(leaving)
    assert len(queue._rest) < 10
    assert (queue.tokens, queue.requests) == (1, 1)
    assert queue.take(1, 256) is not None
    assert queue.take(1, 256) is None


def test_a_request_dropped_midway_gives_no_more_batches() -> None:
    queue, runner = Queue(4), FakeRunner()
    request, other = request_of(runner, *[[1]] * 10), request_of(runner, [2])
    queue.add(request)
    queue.add(other)
    assert queue.take(1, 2) is not None
    queue.drop(request)
    batch = queue.take(1, 2)
    assert batch is not None
    assert [item.request for item in batch.items] == [other]
    assert queue.take(1, 2) is None
