"""Test which work may wait, at rates that are measured by a clock of the test."""

import time

import pytest

from support.lanes import Ended, Opened, request_of
from support.runners import Clock, FakeRunner
from support.server import until
from whiten_runtime.inference.batching import Schedule
from whiten_serving.requests import Batch, OverloadedError, TooManyTokensError
from whiten_serving.scheduler import Scheduler


def test_work_is_bounded_in_seconds_at_the_measured_rate(opened: Opened, clock: Clock) -> None:
    runner = FakeRunner(token_seconds=0.001, schedule=Schedule(64, 16), clock=clock)
    lanes, ended = opened(max_wait=0.5), Ended()
    for _ in range(20):  # 1 ms a token: 500 tokens may wait
        lanes.submit(request_of(runner, [1] * 16, done=ended))
    ended.wait(20)
    runner.open.clear()
    lanes.submit(request_of(runner, [1], done=ended))
    until(lambda: runner.texts == 21)
    accepted = 0
    while lanes.stats().queue_seconds <= 0.5:
        lanes.submit(request_of(runner, [1] * 16, done=ended))
        accepted += 1
    with pytest.raises(OverloadedError, match=r"s of work go before it \(limit 0.5 s") as error:
        lanes.submit(request_of(runner, [1] * 16))
    assert accepted == 32
    assert lanes.stats().queue_seconds == pytest.approx(0.512) == error.value.retry_after
    runner.open.set()
    ended.wait(21 + accepted)


def test_each_model_has_a_rate_of_its_own(opened: Opened, clock: Clock) -> None:
    """Work of a slow model is refused by its own rate, and of a fast one accepted by its own."""
    lanes, ended = opened(max_wait=0.5), Ended()
    fast, slow = (FakeRunner(False, seconds, Schedule(1, 16), clock) for seconds in (1e-6, 2e-3))
    for runner in (slow, fast, fast, fast, fast):
        lanes.submit(request_of(runner, [1] * 16, done=ended))
    ended.wait(5)
    until(lambda: not lanes.stats().lanes_busy)
    assert lanes.stats_of(slow).rate == pytest.approx(500)
    assert lanes.stats_of(fast).rate == pytest.approx(10**6)
    for runner in (slow, fast):
        runner.open.clear()
    lanes.submit(request_of(slow, [1] * 16, done=ended))
    until(lambda: slow.texts == 2)
    lanes.submit(request_of(slow, *[[1] * 16] * 40, done=ended))
    assert lanes.stats().queue_seconds == pytest.approx(1.28)
    lanes.submit(request_of(fast, *[[1] * 16] * 40, done=ended))
    with pytest.raises(OverloadedError, match="s of work go before it"):
        lanes.submit(request_of(slow, *[[1] * 16] * 40))
    with pytest.raises(TooManyTokensError, match="can be computed in the") as error:
        lanes.submit(request_of(slow, *[[1] * 16] * 2000, deadline=time.monotonic() + 20))
    assert 5000 < error.value.limit <= 10_000
    for runner in (slow, fast):
        runner.open.set()


def test_a_batch_that_stood_still_refuses_requests_of_one_batch_no_longer_than_it_runs(
    opened: Opened, clock: Clock
) -> None:
    """As where the process was stopped meanwhile, or the machine was busy: the next batches measure the rate anew."""
    lanes, runner, ended = opened(), FakeRunner(False, 60.0, Schedule(1, 16), clock), Ended()
    lanes.submit(request_of(runner, [1], done=ended))
    ended.wait(1)
    until(lambda: not lanes.stats().lanes_busy)
    rate, runner.token_seconds = lanes.stats_of(runner).rate, 1e-4

    def submit(texts: int) -> None:
        lanes.submit(request_of(runner, *[[1] * 16] * texts, done=ended, deadline=time.monotonic() + 10))

    runner.open.clear()
    submit(1)
    with pytest.raises(TooManyTokensError, match="can be computed in the"):  # one waits or runs
        submit(1)
    runner.open.set()
    for number in range(2, 4):
        ended.wait(number)
        until(lambda: not lanes.stats().lanes_busy)
        submit(1)
    submit(20)
    ended.wait(5)
    assert lanes.stats_of(runner).rate > 1000 * rate


@pytest.mark.parametrize("lanes_open", [1, 3])
@pytest.mark.parametrize("slower", [2.0, 7.0, 60.0, 600_000.0])
@pytest.mark.parametrize("rows", [[16] * 20, [300], [3, 16, 1] * 20, [1] * 300], ids=["even", "long", "mixed", "short"])
def test_requests_of_more_than_a_batch_measure_a_model_that_stood_still_anew(
    opened: Opened, clock: Clock, rows: list[int], slower: float, lanes_open: int
) -> None:
    """Though each of them is refused, and no smaller one comes; a limit that a refusal tells is right afterwards.

    What measures the rate is no work of anybody: it is not counted.
    """
    lanes, runner, ended = opened(lanes_open), FakeRunner(False, 0.01, Schedule(1, 16), clock), Ended()
    batches: list[Batch] = []
    lanes.on_batch = batches.append
    runner.token_seconds *= slower
    lanes.submit(request_of(runner, [1] * 16, done=ended))
    ended.wait(1)
    runner.token_seconds /= slower
    for _ in range(40):
        until(lambda: lanes.stats().lanes_busy == lanes.stats().queue_tokens == 0)
        request = request_of(runner, *[[1] * length for length in rows], done=ended, deadline=time.monotonic() + 5)
        try:
            lanes.submit(request, wake=False)
        except TooManyTokensError:
            continue
        break
    else:
        raise AssertionError("no request was taken")
    lanes.wake()
    ended.wait(2)
    until(lambda: lanes.stats().lanes_busy == 0)
    with pytest.raises(TooManyTokensError) as refusal:
        lanes.submit(request_of(runner, *[[1] * 16] * 5000, deadline=time.monotonic() + 10))
    assert 300 < refusal.value.limit <= 1100
    lanes.close()
    assert not lanes._outcomes.open
    assert_counted(lanes, batches, [16, *rows])


def assert_counted(lanes: Scheduler, batches: list[Batch], lengths: list[int]) -> None:
    """Check that these texts are counted, and no others."""
    counted = lanes.stats().counted
    assert (counted.texts, counted.tokens) == (len(lengths), sum(lengths))
    assert (sum(batch.texts for batch in batches), sum(batch.tokens for batch in batches)) == (
        len(lengths),
        sum(lengths),
    )
    assert (len(batches), sum(batch.padding for batch in batches)) == (counted.batches, counted.padding)


def test_texts_that_share_a_batch_with_those_of_a_refused_request_are_counted_without_them(
    opened: Opened, clock: Clock
) -> None:
    lanes, ended, batches = opened(), Ended(), list[Batch]()
    slow, other = FakeRunner(False, 60.0, Schedule(1, 64), clock), FakeRunner(True, 0.01, Schedule(1, 64), clock)
    lanes.submit(request_of(slow, [1] * 8, done=ended))
    ended.wait(1)
    until(lambda: not lanes.stats().lanes_busy)
    lanes.submit(request_of(other, [1], done=ended))
    assert other.begun.acquire(timeout=30)
    lanes.on_batch = batches.append
    with pytest.raises(TooManyTokensError):
        lanes.submit(request_of(slow, *[[1, 1]] * 40, [1] * 32, deadline=time.monotonic() + 5))
    lanes.submit(request_of(slow, [1, 1], [1, 1], done=ended))
    other.open.set()
    ended.wait(3)
    until(lambda: not lanes.stats().lanes_busy and not lanes.stats().queue_tokens)
    assert [len(ids) for ids, _ in slow.batches] == [1, 4]
    assert [(batch.texts, batch.tokens, batch.padding) for batch in batches] == [(2, 4, 0)]
    assert lanes.stats().counted.texts == 4
