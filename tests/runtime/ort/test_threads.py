"""Test the semaphore that is first come, first served, and work in threads that may not be had."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whiten_runtime.ort.process import FairSemaphore, in_thread, map_in_threads, thread_group

PATIENCE = 60


class Waiter:
    """Holds an amount of a semaphore in a thread of its own, from the moment it gets it until `leave`."""

    def __init__(self, semaphore: FairSemaphore, amount: int, limit: int, owner: object = None) -> None:
        self._holds, self._left = threading.Event(), threading.Event()
        asked = threading.Event()

        def work() -> None:
            asked.set()
            with semaphore.hold(amount, limit, owner):
                self._holds.set()
                assert self._left.wait(PATIENCE)

        self._thread = threading.Thread(target=work)
        self._thread.start()
        assert asked.wait(PATIENCE)

    def holds(self) -> bool:
        return self._holds.wait(PATIENCE)

    def waits(self) -> bool:
        return not self._holds.wait(0.05)

    def leave(self) -> None:
        self._left.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def test_amounts_are_held_side_by_side_while_they_fit() -> None:
    semaphore = FairSemaphore()
    first, second = Waiter(semaphore, 60, 100), Waiter(semaphore, 40, 100)
    assert first.holds()
    assert second.holds()
    third = Waiter(semaphore, 1, 100)
    assert third.waits()
    second.leave()
    assert third.holds()
    first.leave()
    third.leave()


def test_a_large_amount_is_served_while_smaller_ones_keep_coming() -> None:
    semaphore = FairSemaphore()
    small = [Waiter(semaphore, 40, 100), Waiter(semaphore, 40, 100)]
    assert all(waiter.holds() for waiter in small)
    large = Waiter(semaphore, 90, 100)
    assert large.waits()
    later = [Waiter(semaphore, 1, 100) for _ in range(3)]
    assert all(waiter.waits() for waiter in later)
    small[0].leave()
    assert large.waits()
    small[1].leave()
    assert large.holds()
    large.leave()
    assert all(waiter.holds() for waiter in later)
    for waiter in later:
        waiter.leave()


def test_who_waits_for_the_owners_turn_holds_nothing_and_keeps_nobody_back() -> None:
    semaphore, owner = FairSemaphore(), object()
    first, second = Waiter(semaphore, 30, 100, owner), Waiter(semaphore, 30, 100, owner)
    assert first.holds()
    assert second.waits()
    others = [Waiter(semaphore, 30, 100), Waiter(semaphore, 40, 100, "another owner")]
    assert all(waiter.holds() for waiter in others)
    others[1].leave()
    first.leave()
    assert second.holds()
    second.leave()
    others[0].leave()


def test_an_interrupted_waiter_leaves_the_queue() -> None:
    semaphore = FairSemaphore()
    interrupted = threading.Event()

    class InterruptedError(BaseException):
        pass

    @contextmanager
    def interrupting() -> Iterator[None]:
        changed, wait_for = semaphore._changed, semaphore._changed.wait_for

        def interrupt(predicate: Callable[[], bool]) -> bool:
            if predicate():
                return True
            interrupted.set()
            raise InterruptedError

        changed.wait_for = interrupt  # type: ignore[method-assign, assignment]
        yield
        changed.wait_for = wait_for  # type: ignore[method-assign]

    with semaphore.hold(100, 100):
        with interrupting(), pytest.raises(InterruptedError), semaphore.hold(50, 100):
            pass
        behind = Waiter(semaphore, 1, 100)
    assert interrupted.is_set()
    assert behind.holds()
    behind.leave()


@given(st.lists(st.tuples(st.integers(1, 120), st.booleans()), min_size=1, max_size=12))
def test_the_limit_is_kept_and_everybody_is_served(amounts: list[tuple[int, bool]]) -> None:
    semaphore, lock, owner = FairSemaphore(), threading.Lock(), object()
    now, most, served = {"amount": 0, "holders": 0, "owners": 0}, [], []

    def work(item: tuple[int, bool]) -> None:
        amount, owns = item
        with semaphore.hold(amount, 100, owner if owns else None):
            with lock:
                now["amount"] += amount
                now["holders"] += 1
                now["owners"] += owns
                most.append((now["amount"] <= 100 or now["holders"] == 1) and now["owners"] <= 1)
            with lock:
                now["amount"] -= amount
                now["holders"] -= 1
                now["owners"] -= owns
                served.append(item)

    with thread_group("test") as start:
        for item in amounts:
            start(lambda item=item: work(item))
    assert all(most)
    assert sorted(served) == sorted(amounts)


def refuse(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("available", [0, 1, 2])
def test_results_come_in_order_whatever_threads_there_are(available: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def limited(self: threading.Thread) -> None:
        if len(started) == available:
            refuse(self)
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    calls = []

    def work(number: int) -> int:
        calls.append(number)
        return number * number

    assert list(map_in_threads(work, range(20), 3, "test")) == [number * number for number in range(20)]
    assert sorted(calls) == list(range(20))
    assert len(started) == available


def test_an_error_is_raised_at_its_place_and_nothing_further_is_begun() -> None:
    calls = []

    def work(number: int) -> int:
        calls.append(number)
        if number == 2:
            raise ValueError(number)
        if number > 2:
            threading.Event().wait(0.01)
        return number

    results = map_in_threads(work, range(1000), 1, "test")
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="2"):
        next(results)
    assert len(calls) < 1000


def test_work_is_done_at_once_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    future: Future[Any] = in_thread(threading.get_ident, "test")
    assert future.result(0) == threading.get_ident()


def test_a_group_waits_for_its_work() -> None:
    ended = []
    with thread_group("test") as start:
        go = threading.Event()
        start(lambda: (go.wait(PATIENCE), ended.append(1)))
        go.set()
    assert ended == [1]
