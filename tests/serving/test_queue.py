"""Test how batches are formed of what waits, whatever comes, goes and is computed in any order."""

import gc
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.runners import FakeRunner
from whiten_runtime.inference.batching import Schedule
from whiten_runtime.inference.engine import TokenizedTexts
from whiten_serving import queue as module
from whiten_serving.queue import Queue, companions
from whiten_serving.requests import RUN_SHARE, Batch, Request


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ([10, 60, 10, 60, 10], [0, 2, 4]),
        ([60, 10, 58, 10, 57], [0, 2, 4]),
        ([16] * 20, range(16)),
        ([3, 4, 3], [0, 1, 2]),  # another run would cost more than the padding
    ],
)
def test_texts_of_like_length_share_a_batch(lengths: list[int], found: object) -> None:
    assert sorted(companions(lengths, 256, 256)) == sorted(found)  # type: ignore[call-overload]


def worth(lengths: list[int], chosen: Sequence[int], full: int) -> float:
    """Return the tokens of a batch for what it costs."""
    longest = max(lengths[index] for index in chosen)
    return sum(lengths[index] for index in chosen) / (len(chosen) * longest + full * RUN_SHARE)


def all_batches(lengths: list[int], budget: int, pairs: int | None) -> Iterator[list[int]]:
    """Yield every batch with the first text: of neighbours in the order of lengths, within the bounds."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for start, end in combinations(range(len(order) + 1), 2):
        chosen, longest = order[start:end], lengths[order[end - 1]]
        large = len(chosen) * longest > budget or (pairs is not None and len(chosen) * longest**2 > pairs)
        if 0 in chosen and (len(chosen) == 1 or not large):
            yield chosen


@settings(max_examples=300)
@given(
    st.one_of(st.integers(1, 8), st.integers(1, 60), st.integers(1, 600)).flatmap(
        lambda longest: st.lists(st.integers(1, longest), min_size=1, max_size=14)
    ),
    st.sampled_from([8, 32, 64, 256, 1024]),
    st.sampled_from([64, 256, 1024]),
    st.sampled_from([None, 100, 4000, 10**6]),
)
def test_a_batch_is_nearly_the_best_of_all(lengths: list[int], budget: int, full: int, pairs: int | None) -> None:
    chosen, every = companions(lengths, budget, full, pairs), list(all_batches(lengths, budget, pairs))
    assert sorted(chosen) in map(sorted, every)
    assert worth(lengths, chosen, full) >= 0.8 * max(worth(lengths, one, full) for one in every)


def test_the_batch_of_a_short_text_has_those_that_are_a_little_longer() -> None:
    assert sorted(companions([7, 14, 2, 3, 4, 15, 4, 19, 3, 15, 5], 256, 512)) == [0, 1, 5, 9]
    assert sorted(companions([6, 33, 24, 51, 2, 29, 44, 2, 24, 3, 3, 55], 1024, 256)) != [0, 9, 10]


def test_a_model_whose_requests_have_ended_is_not_kept() -> None:
    """The sessions of a bundle that was replaced are freed."""
    queue, runner = Queue(), FakeRunner(schedule=Schedule(64, 3))
    for length in (3, 4):
        queue.add(Request(runner, TokenizedTexts([[1] * length]), np.asarray, print))
    batch = queue.take(1, 0.0, [])
    assert batch is not None
    queue.end(batch)
    left = queue.first()
    assert left is not None
    left.finished = True
    queue.drop(left)
    kept = weakref.ref(runner)
    assert queue.take(1, 0.0, []) is None
    del batch, left, runner
    gc.collect()
    assert kept() is None


def test_requests_that_were_dropped_leave_nothing_in_the_queue() -> None:
    """Though the request before them still waits."""
    queue, runner, gone = Queue(), FakeRunner(), []
    queue.add(request_of(runner, *[100] * 1000))
    for _ in range(50):
        request = request_of(runner, *[100] * 100)
        queue.add(request)
        queue.drop(request)
        gone.append(weakref.ref(request.texts))
    del request
    gc.collect()
    assert (queue.tokens, queue.requests) == (100_000, 1)
    assert not any(text() for text in gone)


def request_of(runner: FakeRunner, *lengths: int, client: str = "") -> Request:
    return Request(runner, TokenizedTexts([[1] * length for length in lengths]), np.asarray, print, client=client)


def firsts(queue: Queue, count: int) -> list[Request]:
    """Take batches, and return the requests whose turns they were."""
    found = []
    for _ in range(count):
        first = queue.first()
        batch = queue.take(1, 0.0, [])
        assert first is not None
        assert batch is not None
        assert first in batch.parts
        found.append(first)
        queue.end(batch)
    return found


def test_a_short_request_waits_for_a_batch_of_each_long_one() -> None:
    queue, runner = Queue(), FakeRunner(schedule=Schedule(64, 8))
    long = [request_of(runner, *[8] * 100) for _ in range(3)]
    for request in long:
        queue.add(request)
    assert firsts(queue, 4) == [*long, long[0]]
    short = request_of(runner, 1)
    queue.add(short)
    assert firsts(queue, 4) == [long[1], long[2], long[0], short]


def test_a_request_keeps_its_turn_until_it_has_had_a_batch_of_tokens() -> None:
    """Its first batch has texts of one length only: with one batch a turn, each other length waits for all requests."""
    queue, runner = Queue(), FakeRunner(schedule=Schedule(64, 40))
    requests = [request_of(runner, 1, 9, 20) for _ in range(20)]
    long = request_of(runner, 39, 1, *[39] * 5)
    for request in (*requests, long, request_of(runner, 30)):
        queue.add(request)
    turns = []
    while queue.requests:
        turns += firsts(queue, 1)
    places = [requests.index(request) for request in turns if request in requests]
    assert places == sorted(places)
    after = turns[turns.index(long) :]
    assert [request is long for request in after[:4]] == [True, True, False, True]


def test_models_take_turns_though_one_has_waited_first() -> None:
    queue, slow, fast = Queue(), FakeRunner(schedule=Schedule(64, 8)), FakeRunner(schedule=Schedule(64, 8))
    queue.add(request_of(slow, *[8] * 100))
    firsts(queue, 5)
    queue.add(request_of(fast, *[8] * 2))
    assert [request.runner for request in firsts(queue, 4)] == [fast, slow, fast, slow]


def test_clients_take_turns_whatever_the_number_of_their_requests() -> None:
    queue, runner = Queue(), FakeRunner(schedule=Schedule(64, 8))
    for _ in range(50):
        queue.add(request_of(runner, *[8] * 4, client="many"))
    alone = request_of(runner, *[8] * 4, client="alone")
    queue.add(alone)
    assert [request.client for request in firsts(queue, 8)] == ["many", "alone"] * 4
    assert not alone.waiting


def test_work_waits_for_as_much_of_each_other_request() -> None:
    queue, runner = Queue(), FakeRunner(schedule=Schedule(1, 10))
    queue.line(runner).rate.add(10 * (1 + RUN_SHARE), 1.0)  # ten tokens a second
    assert queue.wait_for(5.0, "") == 0
    queue.add(request_of(runner, *[10] * 100))
    for length in (2, 3):
        queue.add(request_of(runner, length))
    assert queue.seconds == pytest.approx(100.5)
    assert queue.wait_for(0.1, "") == pytest.approx(1.5)  # a batch of the long one
    assert queue.wait_for(20.0, "") == pytest.approx(20.5)
    assert queue.wait_for(1000.0, "") == pytest.approx(100.5)
    assert queue.wait_for(0.1, "another") == pytest.approx(1)  # of a client whose turn comes next


WINDOW = 6
"""Texts of the window here: few, so that requests are longer than it, and wait behind it."""

SCHEDULES = (Schedule(1, 8), Schedule(2, 30, pairs=40), Schedule(3, 12, split=False), Schedule(2, 1))


class QueueStates(RuleBasedStateMachine):
    """Compares the queue with lists of the texts that wait, by model, client and request, in the order of turns."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue()
        self.runners = [FakeRunner(schedule=schedule) for schedule in SCHEDULES]
        self.turns = dict.fromkeys(self.runners, 0)  # when each model had its last one
        self.waiting: dict[Any, list[tuple[str, list[tuple[Request, list[int]]]]]] = {one: [] for one in self.runners}
        self.taken: Counter[Request] = Counter()  # tokens of each request that were taken, less a batch for each turn
        self.running: list[Batch] = []
        self.requests: list[Request] = []
        self._window = mock.patch.object(module, "WINDOW", WINDOW)
        self._window.start()

    @rule(
        number=st.integers(0, len(SCHEDULES) - 1),
        lengths=st.lists(st.integers(0, 9), min_size=1, max_size=2 * WINDOW),
        prompt_tokens=st.sampled_from([0, 0, 3]),
        deadline=st.sampled_from([np.inf, np.inf, 0.0]),
        client=st.sampled_from(["", "", "a", "b"]),
    )
    def add(self, number: int, lengths: list[int], prompt_tokens: int, deadline: float, client: str) -> None:
        texts, runner = TokenizedTexts([[1] * length for length in lengths], prompt_tokens), self.runners[number]
        request = Request(runner, texts, np.asarray, print, deadline, client)
        self.queue.add(request)
        self.requests.append(request)
        if client not in [name for name, _ in self.waiting[runner]]:
            self.waiting[runner].append((client, []))
        (requests,) = [requests for name, requests in self.waiting[runner] if name == client]
        requests.append((request, list(range(len(lengths)))))

    def tidy(self, runner: object) -> None:
        """Forget what waits no more."""
        clients = [(name, [one for one in some if one[1]]) for name, some in self.waiting[runner]]
        self.waiting[runner] = [(name, some) for name, some in clients if some]

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """End a request, as the scheduler does; once more changes nothing."""
        request = data.draw(st.sampled_from(self.requests))
        request.finished = True
        self.queue.drop(request)
        self.lose_turn(request)
        self.forget(request)

    def lose_turn(self, gone: Request) -> None:
        """Pass the turn of a request that is the next one, and of which texts were taken."""
        clients = self.waiting[gone.runner]
        if clients and clients[0][1][0][0] is gone and gone.started:
            self.pass_turn(gone)

    def forget(self, gone: Request) -> None:
        for _, some in self.waiting[gone.runner]:
            for request, indices in some:
                if request is gone:
                    indices.clear()
        self.tidy(gone.runner)

    def ready(self) -> list[FakeRunner]:
        return [one for one in self.runners if self.waiting[one] and self.count(one) < one.schedule.workers]

    @rule(idle=st.integers(1, 4), now=st.sampled_from([-1.0, -1.0, 1.0]))
    def take(self, idle: int, now: float) -> None:
        late: list[Request] = []
        assert self.queue.ready == bool(self.ready())
        batch = self.queue.take(idle, now, late)
        assert all(request.deadline <= now for request in late)
        for request in late:
            self.lose_turn(request)
            self.forget(request)
        if batch is None:
            assert not self.ready()
            return
        line, schedule, runner = self.waiting[batch.runner], batch.runner.schedule, batch.runner
        assert self.turns[runner] == min(self.turns[one] for one in self.ready())  # type: ignore[index]
        order = [(one, index) for _, some in line for one, indices in some if one.deadline > now for index in indices]
        chosen = [(request, index) for request, some in batch.parts.items() for index in some]
        assert order[0] in chosen
        assert len(set(chosen)) == batch.texts
        assert set(chosen) <= set(order[:WINDOW])
        assert {request.texts.prompt_tokens for request in batch.parts} == {order[0][0].texts.prompt_tokens}
        lengths = [request.lengths[index] for request, index in chosen]
        assert (batch.tokens, batch.padding) == (sum(lengths), len(lengths) * max(lengths) - sum(lengths))
        if batch.texts > 1:
            assert batch.texts * max(lengths) <= schedule.budget
            assert batch.texts * max(lengths) ** 2 <= (schedule.pairs or np.inf)
        first = order[0][0]
        self.turns[runner] = max(self.turns.values()) + 1  # type: ignore[index]
        for _, some in line:
            for request, indices in some:
                indices[:] = [index for index in indices if (request, index) not in chosen]
        self.taken[first] += sum(first.lengths[index] for index in batch.parts[first])
        if not first.waiting or self.taken[first] >= schedule.budget:
            self.pass_turn(first)
        self.tidy(runner)
        self.running.append(batch)

    def pass_turn(self, first: Request) -> None:
        """Put a client and its request behind the others."""
        self.taken[first] -= first.runner.schedule.budget
        clients = self.waiting[first.runner]
        clients.sort(key=lambda one: one[0] == first.client)
        clients[-1][1].sort(key=lambda one: one[0] is first)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.running))
        self.running.remove(batch)
        self.queue.end(batch)

    def count(self, runner: object) -> int:
        return sum(batch.runner is runner for batch in self.running)

    @invariant()
    def counts_what_waits(self) -> None:
        waiting = {one: indices for line in self.waiting.values() for _, some in line for one, indices in some}
        for request in self.requests:
            indices = waiting.get(request, [])
            assert request.waiting == indices
            assert request.queued_tokens == sum(request.lengths[index] for index in indices)
        assert self.queue.tokens == sum(request.queued_tokens for request in waiting)
        assert self.queue.requests == len(waiting)
        for runner in self.runners:
            assert self.count(runner) <= runner.schedule.workers

    def teardown(self) -> None:
        """Take all that is left: nothing stays."""
        try:
            while any(self.waiting.values()):
                for batch in self.running:
                    self.queue.end(batch)
                self.running.clear()
                self.take(4, -1.0)
            assert (self.queue.tokens, self.queue.requests, self.queue.ready) == (0, 0, False)
            assert not any(self.queue.line(runner).clients for runner in self.runners)
        finally:
            self._window.stop()


TestQueueStates = QueueStates.TestCase
TestQueueStates.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
