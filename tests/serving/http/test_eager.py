"""Beginning coroutines at once."""

import asyncio

import pytest

from whiten_serving.http.eager import Begun


async def answer() -> str:
    return "at once"


def test_what_need_not_wait_is_done() -> None:
    begun = Begun(answer())
    assert begun.done
    assert begun.result == "at once"


def test_it_may_be_awaited_all_the_same() -> None:
    async def run() -> str:
        return await Begun(answer())

    assert asyncio.run(run()) == "at once"


def test_what_waits_is_awaited() -> None:
    async def run() -> list[str]:
        event, steps = asyncio.Event(), []

        async def waits() -> str:
            steps.append("begun")
            await event.wait()
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            return "after a while"

        begun = Begun(waits())
        assert not begun.done
        asyncio.get_running_loop().call_later(0.01, event.set)
        async with asyncio.timeout(20):
            steps.append(await begun)
        return steps

    assert asyncio.run(run()) == ["begun", "after a while"]


def test_a_timeout_ends_it() -> None:
    async def run() -> list[str]:
        steps = []

        async def waits() -> None:
            try:
                await asyncio.sleep(20)
            finally:
                steps.append("cleaned up")

        begun = Begun(waits())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await begun
        return steps

    assert asyncio.run(run()) == ["cleaned up"]


@pytest.mark.parametrize("before", [True, False])
def test_errors_are_raised(before: bool) -> None:
    async def fails() -> None:
        if not before:
            await asyncio.sleep(0)
        raise KeyError("lost")

    async def run() -> None:
        with pytest.raises(KeyError, match="lost"):
            await Begun(fails())

    asyncio.run(run())


def test_a_coroutine_may_catch_what_is_thrown_into_it() -> None:
    async def run() -> str:
        async def stubborn() -> str:
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                await asyncio.sleep(0)
            return "went on"

        task = asyncio.ensure_future(_awaited(Begun(stubborn())))
        await asyncio.sleep(0.01)
        task.cancel()
        return await task

    assert asyncio.run(run()) == "went on"


async def _awaited(begun: Begun[str]) -> str:
    return await begun
