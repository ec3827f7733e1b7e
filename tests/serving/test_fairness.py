"""Test how clients share turns, memory and threads: `Turns`, `Share` and `FairExecutor`."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whiten_serving.fairness import FairExecutor, Share, Turns, pieces

TURN = 16_384
"""Characters of a turn of the threads that read texts."""


@given(st.integers(1, 50), st.lists(st.integers(1, 400), min_size=2, max_size=8), st.data())
def test_members_that_always_wait_take_equal_amounts(share: int, costs: list[int], data: st.DataObject) -> None:
    """Whatever each takes at a time, and though one is away now and then: its debt stays while others wait."""
    turns, taken = Turns[int](share), [0] * len(costs)
    absent = data.draw(st.lists(st.booleans(), min_size=10, max_size=10))  # the first member, in twenty steps each
    always = range(1, len(costs))
    for step in range(200):
        waiting = set(always) if absent[step // 20] else {0, *always}
        for member in waiting:
            turns.add(member)
        member = turns.first(waiting)
        assert member in waiting
        turns.charge(member, costs[member])
        taken[member] += costs[member]
        for one in always:
            for other in always:
                assert taken[one] - taken[other] < share + max(share, costs[one])
            assert taken[0] - taken[one] < 2 * share + costs[0]


@given(st.integers(1, 50), st.integers(1, 40))
def test_a_debt_is_paid_by_turns_that_are_passed_over(share: int, times: int) -> None:
    """A member that has taken so many shares at once comes after as many turns of another one, though it was away."""
    turns, order = Turns[str](share), []
    for member in ("greedy", "other"):
        turns.add(member)
    turns.charge("greedy", share * times)
    for waiting in [{"other"}] * (times // 2) + [{"greedy", "other"}] * (times + 1):
        for member in waiting:
            turns.add(member)
        order.append(turns.first(waiting))
        turns.charge(order[-1], share)
    assert order.index("greedy") == times
    assert set(turns) == {"greedy", "other"}
    turns.remove("greedy")
    assert list(turns) == ["other"]


@given(st.integers(1, 9), st.integers(1, 50), st.integers(0, 3000))
def test_greedy_clients_have_a_share_each(count: int, size: int, limit: int) -> None:
    share, held = Share(limit), dict.fromkeys(map(str, range(count)), 0)
    while takers := [client for client in held if share.admits(client, size)]:
        for client in takers:
            if share.admits(client, size):
                share.add(client, size)
                held[client] += size
    assert share.total == sum(held.values()) <= limit
    for amount in held.values():
        assert abs(amount - limit / (count + 1)) < size + limit % size / 2 + 1
    assert share.admits("newcomer", (limit - share.total) // 2)
    assert not share.admits("newcomer", (limit - share.total) // 2 + 1)


class Reading:
    """An executor of one thread, which is held until `work` is called; notes which items it runs."""

    def __init__(self) -> None:
        self.executor, self.order, self._open = FairExecutor(1), list[str](), threading.Event()
        self._holder: asyncio.Task[Any] | None = None

    async def hold(self) -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hold() -> None:
            loop.call_soon_threadsafe(begun.set)
            assert self._open.wait(60)

        self._holder = asyncio.create_task(self.executor.run("holder", 0, hold))
        await begun.wait()

    async def add(self, client: str, size: int) -> "asyncio.Task[None]":
        task = asyncio.create_task(self.executor.run(client, size, self.order.append, client))
        await asyncio.sleep(0)
        return task

    async def work(self, *tasks: "asyncio.Task[None]") -> None:
        assert self._holder is not None
        self._open.set()
        await asyncio.wait([self._holder, *tasks])


def reading(test: Callable[[Reading], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        reader = Reading()
        await reader.hold()
        await test(reader)
        reader.executor.close()

    asyncio.run(run())


def test_items_that_were_cancelled_cost_nothing() -> None:
    async def test(reader: Reading) -> None:
        gone = [await reader.add("a", 9 * TURN) for _ in range(5)]
        tasks = [await reader.add(name, TURN // 2) for name in "aabb"]
        for task in gone:
            task.cancel()
        await asyncio.wait(gone)
        await reader.work(*tasks)
        assert reader.order == list("aabb")

    reading(test)


def test_texts_are_read_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thread that is started later comes to was read already."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        executor = FairExecutor(1)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert await executor.run("a", 1, threading.current_thread) is threading.current_thread()
        for number in range(3):
            assert await executor.run("a", 1, pow, 2, number) == 2**number
        executor.close()
        assert await executor.run("a", 1, pow, 2, 3) == 8

    asyncio.run(run())


def test_an_item_is_run_once_though_the_pool_has_taken_it_and_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a second thread cannot be started, and the first one is free again at once."""

    async def run() -> None:
        executor = FairExecutor(2)

        def submit(function: Callable[[], None]) -> None:
            function()
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(executor._pool, "submit", submit)
        order = list[int]()
        await executor.run("a", 1, order.append, 1)
        assert order == [1]

    asyncio.run(run())


@given(st.lists(st.integers(0, 2 * TURN), max_size=40))
def test_pieces_are_all_texts_in_parts_of_a_turn(sizes: list[int]) -> None:
    parts = list(pieces(sizes))
    assert [size for part, _ in parts for size in sizes[part]] == sizes
    for part, total in parts:
        assert total == sum(sizes[part])
        assert sum(sizes[part][:-1]) < TURN
    assert all(total >= TURN for _, total in parts[:-1])
