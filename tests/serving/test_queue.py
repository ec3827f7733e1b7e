"""Test how batches are formed of what waits: invariants that hold whatever comes, goes and is computed in any order."""

import gc
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from support.runners import FakeRunner
from whiten_runtime.inference.batching import Schedule
from whiten_runtime.inference.engine import TokenizedTexts
from whiten_serving.requests import RUN_SHARE, Batch, Queue, Request, companions


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
    assert worth(lengths, chosen, full) >= 0.8 * max(worth(lengths, batch, full) for batch in every)


def request_of(
    runner: FakeRunner, lengths: Sequence[int], client: str = "", prompt_tokens: int = 0, deadline: float = np.inf
) -> Request:
    texts = TokenizedTexts([[1] * length for length in lengths], prompt_tokens)
    return Request(runner, texts, np.asarray, print, deadline, client)


def take(queue: Queue) -> Batch:
    """Take a batch, which is computed at once."""
    batch = queue.take(1, 0.0, [])
    assert batch is not None
    queue.end(batch, 0.0, 1, True)
    return batch


lengths_of_texts = st.integers(0, 12).flatmap(lambda power: st.integers(2**power, 2 ** (power + 1)))
"""Tokens of a text, 1 to 8,192: as many short as long ones."""


class Clients:
    """Clients of one model that always have work waiting, each of texts as long as its own length."""

    def __init__(self, lengths: Sequence[int], texts: int, budget: int) -> None:
        self.queue, self.runner = Queue(), FakeRunner(schedule=Schedule(1, budget))
        self.lengths, self._texts, self._waiting = np.array(lengths), texts, np.zeros(len(lengths), np.int64)
        self.most = np.maximum(budget, self.lengths)  # tokens of a batch of each client
        self._refill()

    def _refill(self) -> None:
        for client, length in enumerate(self.lengths):
            while self._waiting[client] <= 2 * self.most[client]:
                self.queue.add(request_of(self.runner, [length] * self._texts, str(client)))
                self._waiting[client] += length * self._texts

    def take(self) -> tuple[np.ndarray, Batch]:
        """Return the tokens of each client in the next batch, and the batch."""
        batch, tokens = take(self.queue), np.zeros_like(self._waiting)
        for request, indices in batch.parts.items():
            if request.client.isdigit():
                tokens[int(request.client)] += sum(request.lengths[index] for index in indices)
        self._waiting -= tokens
        self._refill()
        return tokens, batch


clients = st.builds(
    Clients,
    st.one_of(
        st.lists(lengths_of_texts, min_size=2, max_size=6),
        st.lists(lengths_of_texts, min_size=7, max_size=40),
        st.integers(1, 60).flatmap(lambda least: st.lists(st.integers(least, least + 3), min_size=2, max_size=6)),
    ),
    st.sampled_from([1, 3, 64]),
    st.sampled_from([64, 256, 1024]),
)


QUICKLY = settings(phases=[Phase.explicit, Phase.generate])
"""An example that fails is not made smaller: each one has hundreds of batches."""


def check_shares(clients: Clients, batches: int) -> None:
    """Check the tokens of each two clients over each window of time.

    After each round of turns, a client has taken as much as its turns allow, and less than a batch or a text more, as a
    turn that is not over lasts for one batch more. One of the two has had its turn of this round before the other.
    """
    taken = np.cumsum([clients.take()[0] for _ in range(batches)], axis=0)
    budget = clients.runner.schedule.budget
    for one, other in combinations(range(len(clients.lengths)), 2):
        assert np.ptp(taken[:, one] - taken[:, other]) <= budget + clients.most[one] + clients.most[other]


@settings(QUICKLY, max_examples=10)
@given(clients)
def test_clients_that_wait_get_equal_tokens_in_any_window_of_time(clients: Clients) -> None:
    check_shares(clients, 60)


@settings(QUICKLY, max_examples=30)
@given(clients, st.integers(0, 40), lengths_of_texts)
def test_a_text_that_comes_waits_for_a_turn_of_each_client(clients: Clients, before: int, length: int) -> None:
    """A turn is less than a full batch, and then a batch or a text more; what was estimated is a full batch each."""
    for _ in range(before):
        clients.take()
    request = request_of(clients.runner, [length], "newcomer")
    budget = clients.runner.schedule.budget
    estimated = clients.queue.line(clients.runner).tokens_before("newcomer", 1)
    assert estimated == budget * len(clients.lengths)
    clients.queue.add(request)
    waited = 0
    while True:
        tokens, batch = clients.take()
        if request in batch.parts:
            break
        waited += tokens.sum()
        assert waited <= (budget + clients.most).sum()


@settings(max_examples=30)
@given(st.lists(st.lists(lengths_of_texts, min_size=1, max_size=8), min_size=2, max_size=4))
def test_requests_of_a_client_take_turns(lengths: list[list[int]]) -> None:
    queue, runner = Queue(), FakeRunner(schedule=Schedule(1, 64))
    requests = [request_of(runner, some * 40) for some in lengths]
    for request in requests:
        queue.add(request)
    longest = max(64, *map(max, lengths))
    while all(request.waiting for request in requests):
        take(queue)
        taken = [request.tokens - request.queued_tokens for request in requests]
        assert max(taken) - min(taken) <= 64 + 2 * longest


drawn_requests = st.tuples(
    st.integers(0, 2),
    st.lists(st.one_of(st.just(0), lengths_of_texts, st.integers(8, 12)), min_size=1, max_size=300),
    st.sampled_from(["", "a", "b"]),
    st.sampled_from([0, 0, 3]),
    st.sampled_from([np.inf, np.inf, 0.0]),
)
"""Number of the model, tokens of the texts, client, tokens of the prompt, deadline."""


@settings(max_examples=60)
@given(st.lists(drawn_requests, min_size=1, max_size=12), st.integers(1, 4))
def test_batches_hold_each_text_once_within_the_bounds_of_their_model(
    drawn: list[tuple[int, list[int], str, int, float]], idle: int
) -> None:
    queue, late = Queue(), list[Request]()
    schedules = (Schedule(1, 256), Schedule(2, 1024, pairs=10_000), Schedule(3, 64, split=False))
    runners = [FakeRunner(schedule=schedule) for schedule in schedules]
    requests = [request_of(runners[number], *described) for number, *described in drawn]
    for request in requests:
        queue.add(request)
    taken, running = Counter[tuple[Request, int]](), list[Batch]()
    while queue.requests:
        batch = queue.take(idle, 1.0, late)
        if batch is None:
            for ended in running:
                queue.end(ended, 0.1, 1, True)
            running.clear()
            continue
        running.append(batch)
        schedule, texts = batch.runner.schedule, [(one, index) for one, some in batch.parts.items() for index in some]
        taken.update(texts)
        assert {request.runner for request in batch.parts} == {batch.runner}
        assert len({request.texts.prompt_tokens for request in batch.parts}) == 1
        assert sum(one.runner is batch.runner for one in running) <= schedule.workers
        lengths = [request.lengths[index] for request, index in texts]
        padded = len(lengths) * max(lengths)
        assert (batch.texts, batch.tokens, batch.padding) == (len(texts), sum(lengths), padded - sum(lengths))
        assert batch.texts == 1 or padded <= schedule.budget
        assert batch.texts == 1 or padded * max(lengths) <= (schedule.pairs or np.inf)
        assert queue.tokens == sum(request.queued_tokens for request in requests)
    assert set(late) == {request for request in requests if request.deadline == 0}
    expected = [(one, index) for one in requests if one.deadline > 0 for index in range(len(one.lengths))]
    assert taken == Counter(expected)
    assert queue.seconds == queue.tokens == 0
    assert not queue.ready


@settings(max_examples=20)
@given(st.lists(st.floats(0.001, 100), min_size=2, max_size=5))
def test_models_take_turns_by_time(seconds: list[float]) -> None:
    """None has had more time than another one but for a batch; one that comes later does not catch up."""
    queue = Queue()
    times = {FakeRunner(schedule=Schedule(1, 64)): time for time in seconds}
    *early, last = times
    had = dict.fromkeys(times, 0.0)
    for runner in early:
        queue.add(request_of(runner, [64] * 300))
    for step in range(60):
        if step == 30:
            queue.add(request_of(last, [64] * 300))
            had[last] = min(had[runner] for runner in early)
        batch = queue.take(1, 0.0, [])
        assert batch is not None
        queue.end(batch, times[batch.runner], 1, True)  # type: ignore[index]
        had[batch.runner] += times[batch.runner]  # type: ignore[index]
        waiting = list(times) if step >= 30 else early
        for one in waiting:
            for other in waiting:
                assert had[one] - had[other] <= times[one] + 1e-6


class Client(str):
    """Name of a client, which can be referred to weakly."""


def test_nothing_is_kept_of_clients_that_have_gone() -> None:
    """Though one always has work waiting: neither of those that were computed nor of those that left."""
    queue, runner = Queue(), FakeRunner(schedule=Schedule(1, 64))
    queue.add(request_of(runner, [8] * 4000, "greedy"))
    gone = []
    for number in range(100):
        request = request_of(runner, [8, 1000], Client(number))
        gone += [weakref.ref(request.texts), weakref.ref(request.client)]
        queue.add(request)
        if number % 2:
            queue.drop(request)
    del request
    while queue.requests > 1 or list(queue.line(runner)._clients) != ["greedy"]:
        take(queue)
        assert queue.tokens, "debts of those that have gone are not forgotten"
    gc.collect()
    assert not any(reference() for reference in gone)
    while queue.tokens:
        take(queue)
    assert not list(queue.line(runner)._clients)


def test_a_model_whose_requests_have_ended_is_not_kept() -> None:
    """The sessions of a bundle that was replaced are freed."""
    queue, runner = Queue(), FakeRunner(schedule=Schedule(64, 3))
    requests = [request_of(runner, [length]) for length in (3, 4)]
    for request in requests:
        queue.add(request)
    take(queue)
    queue.drop(next(request for request in requests if request.waiting))
    requests.clear()
    reference = weakref.ref(runner)
    assert queue.take(1, 0.0, []) is None
    del request, runner
    gc.collect()
    assert reference() is None
