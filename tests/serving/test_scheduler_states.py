"""Callers that come, go and compute, deadlines, batches that end or fail, models that are closed: in any order."""

import threading
from collections import Counter
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from support.runners import LOST, POISON, FakeRunner, vectors_of
from support.server import until
from whiten_runtime.errors import WhitenError
from whiten_runtime.inference.batching import Schedule
from whiten_runtime.inference.engine import TokenizedTexts
from whiten_serving import scheduler
from whiten_serving.requests import DeadlineExceededError, Request
from whiten_serving.scheduler import Scheduler

SCHEDULES = (Schedule(1, 8), Schedule(2, 30, pairs=60), Schedule(4, 12, split=False))
BAD = (POISON, LOST)


class StepRunner(FakeRunner):
    """Holds each batch until it is told to go on with that one."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule=schedule)
        self.runs: list[threading.Event] = []  # of the batches that run
        self.most = 0
        self._lock = threading.Lock()

    def run_batch(self, *arguments: Any, **named: Any) -> NDArray[np.float32]:
        go = threading.Event()
        with self._lock:
            self.runs.append(go)
            self.most = max(self.most, len(self.runs))
        assert go.wait(60)
        with self._lock:
            self.runs.remove(go)
        return super().run_batch(*arguments, **named)


class SchedulerStates(RuleBasedStateMachine):
    """Holds all requests that were taken, and what became of each."""

    def __init__(self) -> None:
        super().__init__()
        self.runners = [StepRunner(schedule) for schedule in SCHEDULES]
        self.taken: list[Request] = []
        self.gone: set[Request] = set()  # whose callers went before their outcome
        self.told: Counter[Request] = Counter()
        self.callers: list[threading.Thread] = []
        self.ended: set[StepRunner] = set()
        self.closing: list[threading.Thread] = []
        self.closed = False

    @initialize(lanes=st.integers(1, 4))
    def open(self, lanes: int) -> None:
        self.scheduler = Scheduler(lanes)
        self._seconds, scheduler._INLINE_SECONDS = scheduler._INLINE_SECONDS, np.inf

    @rule(
        number=st.integers(0, len(SCHEDULES) - 1),
        rows=st.lists(st.lists(st.sampled_from([1, 2, 3, 4, 5, *BAD]), max_size=6), min_size=1, max_size=8),
        prompt_tokens=st.sampled_from([0, 2]),
        late=st.sampled_from([False, False, False, True]),
        client=st.sampled_from(["", "a", "b"]),
        wake=st.booleans(),
    )
    def submit(
        self, number: int, rows: list[list[int]], prompt_tokens: int, late: bool, client: str, wake: bool
    ) -> None:
        """Queue a request, whose caller computes its first batch where it may."""
        runner = self.runners[number]
        rows = [row or [1] for row in rows]
        request = Request(runner, TokenizedTexts(rows, prompt_tokens), np.asarray, self.tell, 0.0 if late else np.inf)
        request.client = client
        try:
            self.scheduler.submit(request, wake)
        except WhitenError:
            assert runner in self.ended
            return
        assert runner not in self.ended
        self.taken.append(request)
        if not wake:
            self.callers.append(threading.Thread(target=self.scheduler.compute_or_wake, daemon=True))
            self.callers[-1].start()
        self.settle()

    def tell(self, request: Request) -> None:
        self.told[request] += 1

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.taken))
        before = request.finished
        self.scheduler.cancel(request)
        if not before:
            self.gone.add(request)
        self.settle()

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def let_time_pass(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.taken)).deadline = 0.0

    @precondition(lambda self: any(runner.runs for runner in self.runners))
    @rule(number=st.integers(0, 999))
    def end_batch(self, number: int) -> None:
        """End any batch; which there are, and in which order, depends on threads, and may not be what is drawn from."""
        runs = [go for runner in self.runners for go in runner.runs]
        runs[number % len(runs)].set()
        self.settle()

    @rule(number=st.integers(0, len(SCHEDULES) - 1), wait=st.booleans())
    def end_model(self, number: int, wait: bool) -> None:
        runner = self.runners[number]
        self.ended.add(runner)
        self.closing.append(threading.Thread(target=self.scheduler.end, args=(runner, wait), daemon=True))
        self.closing[-1].start()
        until(lambda: runner in self.scheduler._ended)
        self.settle()

    def settle(self) -> None:
        """Wait until each lane computes, or has nothing to compute: no text waits that might run."""
        until(lambda: self.is_settled() and self.is_settled())

    def is_settled(self) -> bool:
        busy = [len([go for go in runner.runs if not go.is_set()]) for runner in self.runners]
        if any(go.is_set() for runner in self.runners for go in runner.runs):
            return False
        waiting = {id(request.runner) for request in self.taken if request.queued_tokens}
        may = [
            id(runner) in waiting and count < runner.schedule.workers
            for runner, count in zip(self.runners, busy, strict=True)
        ]
        stats = self.scheduler.stats()
        return stats.lanes_busy == sum(busy) and (sum(busy) >= self.scheduler.lanes or not any(may))

    @invariant()
    def every_request_ends_once(self) -> None:
        for request in self.taken:
            if not request.finished:
                assert not self.told[request]
            elif request in self.gone:
                assert self.told[request] == 0
            else:
                until(lambda: self.told[request] == 1)  # noqa: B023
                self.check_outcome(request)
        assert not self.told - Counter(set(self.taken))
        for runner in self.runners:
            assert runner.most <= runner.schedule.workers

    def check_outcome(self, request: Request) -> None:
        bad = any(token in BAD for row in request.texts.ids for token in row)
        if request.result is not None:
            assert request.error is None
            assert not bad
            np.testing.assert_array_equal(request.result, vectors_of(request.texts.ids, request.texts.prompt_tokens))
        elif isinstance(request.error, DeadlineExceededError):
            assert request.deadline == 0
        else:
            assert isinstance(request.error, WhitenError)
            closed = str(request.error) == "the batcher was closed before this was computed"
            assert (request.runner in self.ended or self.closed) if closed else bad

    @invariant()
    def counts_what_waits(self) -> None:
        waiting = [request.queued_tokens for request in self.taken if request.queued_tokens]
        stats = self.scheduler.stats() if hasattr(self, "scheduler") else None
        if stats is not None:
            assert (stats.queue_tokens, stats.queue_requests) == (sum(waiting), len(waiting))

    def teardown(self) -> None:
        """Close, let everything run, and find every request ended, and nothing left."""
        if not hasattr(self, "scheduler"):
            return
        scheduler._INLINE_SECONDS = self._seconds
        wait, self.closed = len(self.taken) % 2 == 0, True
        closing = threading.Thread(target=self.scheduler.close, args=(wait,), daemon=True)
        closing.start()

        def done() -> bool:
            for runner in self.runners:
                for go in list(runner.runs):
                    go.set()
            return not any(thread.is_alive() for thread in (closing, *self.closing, *self.callers))

        until(done)
        assert all(request.finished for request in self.taken)
        self.every_request_ends_once()
        stats = self.scheduler.stats()
        assert (stats.queue_tokens, stats.queue_requests, stats.lanes_busy) == (0, 0, 0)
        assert not self.scheduler._open
        assert self.scheduler._tokens.total == 0
        assert not self.scheduler._tokens._held
        assert not any(thread.is_alive() for thread in self.scheduler._threads)


TestSchedulerStates = SchedulerStates.TestCase
TestSchedulerStates.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
