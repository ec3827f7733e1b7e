"""Test how much may wait: in seconds at the rate of each model, and in tokens of each client."""

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.lanes import Opened, request_of
from support.runners import Clock, FakeRunner
from support.server import until
from whiten_runtime.inference.batching import Schedule
from whiten_serving.requests import OverloadedError, Rate, Request, TooManyTokensError
from whiten_serving.scheduler import MAX_QUEUE_TOKENS, Scheduler


def submit(lanes: Scheduler, runner: FakeRunner, *lengths: int, client: str = "", seconds: float = 1e9) -> Request:
    rows: Sequence[Sequence[int]] = [[1] * length for length in lengths]
    request = request_of(runner, *rows, deadline=time.monotonic() + seconds)
    request.client = client
    lanes.submit(request)
    return request


def measured(lanes: Scheduler, clock: Clock, token_seconds: float = 0.001) -> FakeRunner:
    """Return a runner of batches of 16 tokens whose rate is measured, and which holds a batch of one token."""
    runner = FakeRunner(False, token_seconds, Schedule(1, 16), clock)
    busy = lanes.stats().lanes_busy
    for _ in range(3):
        request = submit(lanes, runner, 16)
        until(lambda: request.finished and lanes.stats().lanes_busy == busy)  # noqa: B023
    runner.open.clear()
    submit(lanes, runner, 1)
    until(lambda: runner.texts == 4)
    return runner


def test_work_is_bounded_in_seconds_at_the_measured_rate(opened: Opened, clock: Clock) -> None:
    """One millisecond a token: 500 tokens may go before a request, and so no longer than its deadline allows."""
    lanes = opened(max_wait=0.5)
    runner, accepted = measured(lanes, clock), 0
    while lanes.stats().queue_seconds <= 0.5:
        submit(lanes, runner, 16)
        accepted += 1
    with pytest.raises(OverloadedError) as error:
        submit(lanes, runner, *[16] * 40)
    assert accepted == 32
    assert lanes.stats().queue_seconds == pytest.approx(0.512) == error.value.retry_after
    lanes.check_room([runner], "another")
    with pytest.raises(OverloadedError):
        lanes.check_room([runner])
    assert lanes.stats().counted.rejected == 2
    runner.open.set()


def test_work_that_cannot_begin_by_its_deadline_is_refused(opened: Opened, clock: Clock) -> None:
    lanes = opened()
    runner = measured(lanes, clock)
    submit(lanes, runner, *[16] * 500)
    with pytest.raises(OverloadedError) as error:
        submit(lanes, runner, *[16] * 500, seconds=7)
    assert error.value.retry_after == pytest.approx(8.0)
    submit(lanes, runner, *[16] * 500, seconds=60)
    submit(lanes, runner, 16, seconds=7)  # takes turns with the others
    submit(lanes, runner, *[16] * 300, client="another", seconds=7)
    runner.open.set()


def test_each_model_has_a_rate_of_its_own(opened: Opened, clock: Clock) -> None:
    lanes = opened(2, max_wait=0.5)
    fast, slow = (measured(lanes, clock, seconds) for seconds in (1e-6, 2e-3))
    for runner in (slow, fast):
        submit(lanes, runner, *[16] * 40)
    assert lanes.stats_of(slow).seconds == pytest.approx(1.28, rel=0.1)
    assert lanes.stats_of(fast).seconds == pytest.approx(640e-6, rel=0.1)
    with pytest.raises(OverloadedError):
        submit(lanes, slow, *[16] * 40)
    for runner in (slow, fast):
        runner.open.set()


@given(st.lists(st.floats(1, 1000), max_size=10), st.floats(1, 1000), st.floats(0.1, 10))
def test_a_rate_is_that_of_the_last_batches(before: list[float], tokens: float, seconds: float) -> None:
    """A batch during which the machine stood still is forgotten."""
    rate = Rate()
    assert rate.seconds_for(100) == 0
    for stood_still in before:
        rate.add(tokens, stood_still)
    for _ in range(200):
        rate.add(tokens, seconds)
    assert rate.seconds_for(3 * tokens) == pytest.approx(3 * seconds, rel=1e-3)


def test_clients_have_a_share_each_of_the_tokens_that_may_wait(opened: Opened) -> None:
    lanes, runner, size = opened(), FakeRunner(held=True, schedule=Schedule(1, 16)), MAX_QUEUE_TOKENS // 64
    requests = list[Request]()

    def fill(client: str) -> int:
        """Return the tokens that a client may queue."""
        tokens = 0
        while True:
            try:
                requests.append(submit(lanes, runner, *[1024] * (size // 1024), client=client))
            except OverloadedError:
                return tokens
            tokens += size

    assert fill("first") == MAX_QUEUE_TOKENS // 2
    assert fill("second") == MAX_QUEUE_TOKENS // 4
    lanes.check_room([runner], "newcomer")
    for _ in range(2):
        with pytest.raises(OverloadedError):
            lanes.check_room([runner], "first")
    for request in requests:
        lanes.cancel(request)
    assert fill("third") == MAX_QUEUE_TOKENS // 2
    with pytest.raises(TooManyTokensError) as error:
        submit(lanes, runner, *[8192] * (MAX_QUEUE_TOKENS // 2 // 8192), 1)
    assert error.value.limit == MAX_QUEUE_TOKENS // 2
    assert lanes.stats().counted.rejected == 3 + 2 + 1
    runner.open.set()
    lanes.close(wait=False)
