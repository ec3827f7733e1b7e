"""Requests that are accepted although a measured rate, or the number of tokens that wait, speaks against them."""

import asyncio
from pathlib import Path

import pytest

from support.asgi import ask, until
from support.loads import cancel
from support.timed import slow, text_of
from whiten import AsyncEncoder, OverloadedError


@pytest.mark.parametrize(
    ("times", "status", "code"), [(0.5, 200, None), (1.6, 200, None), (3.0, 413, "too_many_tokens")]
)
def test_a_rate_may_be_too_low_by_half(timed_bundle: Path, times: float, status: int, code: str | None) -> None:
    """At the rate of a slow text, other texts would take `times` as long as they may."""

    async def run() -> None:
        async with AsyncEncoder(timed_bundle, lanes=1) as encoder:
            app = encoder.asgi_app("timed")
            await ask(app, "POST", "/v1/embeddings", {"input": f"{slow(512)} {text_of(200)}"})
            await until(lambda: encoder.stats().lanes_busy == 0)  # then it is measured
            page = (await ask(app, "GET", "/metrics")).body.decode()
            rate = float(page.split('whiten_model_tokens_per_second{model="timed"} ')[1].split()[0])
            texts = [text_of(250, number) for number in range(40)]
            headers = {"x-timeout-ms": str(round(1000 * 250 * len(texts) / rate / times))}
            answer = await ask(app, "POST", "/v1/embeddings", {"input": texts}, headers)
            assert answer.status == status, answer.body
            assert code is None or answer.json()["error"]["code"] == code

    asyncio.run(run())


def test_work_that_would_wait_longer_than_max_wait_is_refused(timed_bundle: Path) -> None:
    """At the rate of a slow text, a request takes seconds, though no more than a moment may go before another one."""

    async def run() -> None:
        async with AsyncEncoder(timed_bundle, lanes=1, max_wait=0.1) as encoder:
            await encoder.encode(f"{slow(512)} {text_of(200)}")
            await until(lambda: encoder.stats().lanes_busy == 0)  # then it is measured
            running = asyncio.create_task(encoder.encode(f"{slow(724)} {text_of(200)}"))
            await until(lambda: encoder.stats().lanes_busy == 1)
            texts = [text_of(250, number) for number in range(40)]
            waiting = asyncio.create_task(encoder.encode(texts))
            await until(lambda: encoder.stats().queue_tokens == 250 * len(texts))
            assert encoder.stats().queue_seconds > 0.1
            with pytest.raises(OverloadedError) as error:
                await encoder.encode(texts)
            assert error.value.retry_after > 0.1
            await asyncio.gather(running, waiting)

    asyncio.run(run())


@pytest.mark.slow
def test_short_requests_find_room_behind_a_full_queue(timed_bundle: Path) -> None:
    """As many tokens wait as may, 1,048,576; an eighth of them are for requests of 2,048 tokens at most."""
    long = 8192

    async def run() -> None:
        async with AsyncEncoder(timed_bundle, lanes=1) as encoder:

            def wait_for(tokens: int, texts: int) -> "asyncio.Task[object]":
                numbers = range(len(waiting) * texts, (len(waiting) + 1) * texts)
                waiting.append(asyncio.create_task(encoder.encode([text_of(tokens, number) for number in numbers])))
                return waiting[-1]

            waiting: list[asyncio.Task[object]] = []
            running = asyncio.create_task(encoder.encode(f"{slow(1448)} {text_of(900)}"))
            await until(lambda: encoder.stats().lanes_busy == 1)
            for _ in range(8):
                wait_for(long, 16)
            await until(lambda: encoder.stats().queue_tokens == 8 * 16 * long)
            with pytest.raises(OverloadedError):
                await wait_for(2049, 1)
            short = wait_for(2048, 1)
            await until(lambda: short.done() or encoder.stats().queue_requests == 9)
            assert not short.done()
            await cancel(running, *(task for task in waiting if not task.done()))
            await encoder.close(wait=False)

    asyncio.run(run())
