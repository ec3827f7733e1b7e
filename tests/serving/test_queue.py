"""Test how batches are formed of what waits, whatever comes, goes and is computed in any order."""

import gc
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
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
from whiten_serving.queue import RUN_SHARE, Queue, companions
from whiten_serving.requests import Batch, Request


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
    batch = queue.take(1)
    assert batch is not None
    queue.end(batch)
    (left,) = queue.expired(np.inf) or [None]
    assert left is not None
    left.finished = True
    queue.drop(left)
    kept = weakref.ref(runner)
    assert queue.expired(0.0) == []
    del batch, left, runner
    gc.collect()
    assert kept() is None


WINDOW = 6
"""Texts of the window here: few, so that requests are longer than it, and wait behind it."""

SCHEDULES = (Schedule(1, 8), Schedule(2, 30, pairs=40), Schedule(3, 12, split=False), Schedule(2, 1))


@dataclass(eq=False)
class Text:
    """One text of a request that was queued."""

    request: Request
    index: int

    @property
    def length(self) -> int:
        return self.request.lengths[self.index]


class QueueStates(RuleBasedStateMachine):
    """Compares the queue with a list of all texts that wait, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue()
        self.runners = [FakeRunner(schedule=schedule) for schedule in SCHEDULES]
        self.waiting: list[Text] = []
        self.running: list[Batch] = []
        self.requests: list[Request] = []
        self._window = mock.patch.object(module, "WINDOW", WINDOW)
        self._window.start()

    @rule(
        number=st.integers(0, len(SCHEDULES) - 1),
        lengths=st.lists(st.integers(0, 9), min_size=1, max_size=2 * WINDOW),
        prompt_tokens=st.sampled_from([0, 0, 3]),
        deadline=st.sampled_from([np.inf, np.inf, 0.0]),
    )
    def add(self, number: int, lengths: list[int], prompt_tokens: int, deadline: float) -> None:
        texts = TokenizedTexts([[1] * length for length in lengths], prompt_tokens)
        request = Request(self.runners[number], texts, np.asarray, print, deadline, submitted=len(self.requests) + 1)
        self.queue.add(request)
        self.requests.append(request)
        self.waiting += [Text(request, index) for index in range(len(lengths))]

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self._drop(data.draw(st.sampled_from(self.requests)))

    def _drop(self, request: Request) -> None:
        """End a request, as the scheduler does; once more changes nothing."""
        request.finished = True
        self.queue.drop(request)
        self.waiting = [text for text in self.waiting if text.request is not request]

    @rule()
    def drop_late(self) -> None:
        late = self.queue.expired(1.0)
        oldest = [self.waiting_of(runner)[:WINDOW] for runner in self.runners]
        expected = {text.request for texts in oldest for text in texts if text.request.deadline <= 1}
        assert set(late) == expected
        assert len(late) == len(expected)
        for request in late:
            self._drop(request)

    @rule(idle=st.integers(1, 4))
    def take(self, idle: int) -> None:
        free = [runner for runner in self.runners if self.count(runner) < runner.schedule.workers]
        ready = [text for text in self.waiting if text.request.runner in free]
        assert self.queue.ready == bool(ready)
        batch = self.queue.take(idle)
        if batch is None:
            assert not ready
            return
        oldest, schedule = ready[0], batch.runner.schedule
        indices = [(request, index) for request, some in batch.parts.items() for index in some]
        chosen = [text for text in self.waiting_of(batch.runner) if (text.request, text.index) in indices]
        assert len(chosen) == len(indices) == batch.texts
        assert oldest in chosen
        assert set(chosen) <= set(self.waiting_of(oldest.request.runner)[:WINDOW])
        assert {text.request.texts.prompt_tokens for text in chosen} == {oldest.request.texts.prompt_tokens}
        longest = max(text.length for text in chosen)
        assert batch.tokens == sum(text.length for text in chosen)
        assert batch.padding == batch.texts * longest - batch.tokens
        if batch.texts > 1:
            assert batch.texts * longest <= schedule.budget
            assert batch.texts * longest**2 <= (schedule.pairs or np.inf)
        self.waiting = [text for text in self.waiting if text not in chosen]
        self.running.append(batch)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.running))
        self.running.remove(batch)
        self.queue.end(batch)

    def waiting_of(self, runner: object) -> list[Text]:
        return [text for text in self.waiting if text.request.runner is runner]

    def count(self, runner: object) -> int:
        return sum(batch.runner is runner for batch in self.running)

    @invariant()
    def counts_what_waits(self) -> None:
        assert self.queue.tokens == sum(text.length for text in self.waiting)
        assert self.queue.requests == len({text.request for text in self.waiting})
        for request in self.requests:
            assert request.queued_tokens == sum(text.length for text in self.waiting if text.request is request)
        for runner in self.runners:
            assert self.count(runner) <= runner.schedule.workers

    def teardown(self) -> None:
        """Take all that is left: nothing stays."""
        while self.waiting:
            for batch in self.running:
                self.queue.end(batch)
            self.running.clear()
            self.take(4)
        assert (self.queue.tokens, self.queue.requests, self.queue.ready) == (0, 0, False)
        self._window.stop()


TestQueueStates = QueueStates.TestCase
TestQueueStates.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
