"""Noticing callers that go."""

import asyncio
from typing import Any

import pytest

from whiten_serving.http.errors import ClientGoneError
from whiten_serving.http.watching import PATIENCE, Watched


class Line:
    """A connection that ends when it is told to."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.watched = 0

    async def receive(self) -> dict[str, Any]:
        self.watched += 1
        await self.ended.wait()
        return {"type": "http.disconnect"}


def test_a_caller_that_goes_ends_the_block() -> None:
    async def run() -> None:
        line = Line()
        asyncio.get_running_loop().call_later(PATIENCE * 3, line.ended.set)
        with pytest.raises(ClientGoneError):
            async with Watched(line.receive):
                await asyncio.sleep(20)
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
        await asyncio.sleep(0)

    asyncio.run(run())


def test_a_block_that_ends_first_is_left_alone() -> None:
    async def run() -> None:
        line = Line()
        async with Watched(line.receive):
            await asyncio.sleep(0)
        await asyncio.sleep(PATIENCE * 3)
        assert line.watched == 0
        async with Watched(line.receive):
            await asyncio.sleep(PATIENCE * 3)
        line.ended.set()
        await asyncio.sleep(PATIENCE)
        assert line.watched == 1
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_errors_of_the_block_come_through() -> None:
    async def run() -> None:
        with pytest.raises(KeyError):
            async with Watched(Line().receive):
                raise KeyError

    asyncio.run(run())


def test_who_cancels_the_request_itself_gets_that() -> None:
    async def run() -> None:
        line = Line()

        async def block() -> None:
            async with Watched(line.receive):
                await asyncio.sleep(20)

        task = asyncio.create_task(block())
        await asyncio.sleep(PATIENCE * 3)
        line.ended.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
