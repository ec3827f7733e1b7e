"""Requests that come while too much waits, callers that go, deadlines, and a model that fails."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.asgi import FIELDS, ask, asked, until
from support.bundles import add_token_without_row, copy_bundle
from support.loads import leave
from support.timed import write_broken_bundle
from whiten import Encoder
from whiten_serving import AsyncEncoder

TEXT = "word " * 40


class Gate:
    """Holds batches back until it is opened."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self._open = threading.Event()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        assert self._open.wait(60)
        return self._run(*arguments, **named)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gated(golden: Any) -> Iterator[tuple[AsyncEncoder, Gate]]:
    """An encoder of one lane that computes nothing before its gate is opened; 100 tokens may wait."""
    with Encoder(golden / "bundle-v1") as encoder:
        batched = AsyncEncoder(encoder, lanes=1)
        batched._queue.scheduler._tokens.limit = 100
        runner = batched._queue.runner
        gate = Gate(runner.run_batch)
        runner.run_batch = gate  # type: ignore[method-assign]
        yield batched, gate
        gate.open()
        batched._queue.close()


async def endless() -> AsyncIterator[bytes]:
    """Yield a body that never ends: an answer is there only if nobody waits for it."""
    yield b"{"
    await asyncio.Event().wait()


@pytest.mark.parametrize("path", FIELDS)
def test_a_full_queue_is_429_before_the_body_is_read(gated: Any, path: str) -> None:
    encoder, gate = gated
    app = encoder.asgi_app()

    async def run() -> None:
        body = {FIELDS[path]: TEXT}
        running = asyncio.create_task(ask(app, "POST", path, body))
        await until(lambda: encoder.stats().lanes_busy == 1)
        waiting = [asyncio.create_task(ask(app, "POST", path, {FIELDS[path]: "word " * 30})) for _ in range(8)]
        await until(lambda: encoder.stats().queue_tokens > 0)
        await until(lambda: any(task.done() for task in waiting))  # the last found no room once it was tokenised
        assert {(await task).status for task in waiting if task.done()} == {429}
        encoder._queue.scheduler._tokens.total += 100  # so that even one more token has no room
        answer = await ask(app, "POST", path, endless())
        encoder._queue.scheduler._tokens.total -= 100
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert int(answer.headers["retry-after-ms"]) >= 1
        gate.open()
        assert (await running).status == 200
        assert {answer.status for answer in await asyncio.gather(*waiting)} == {200, 429}

    asyncio.run(run())


def test_callers_that_go_are_counted(gated: Any, caplog: pytest.LogCaptureFixture) -> None:
    encoder, gate = gated
    app = encoder.asgi_app()

    async def run() -> None:
        first = asyncio.create_task(ask(app, "POST", "/v1/embeddings", {"input": TEXT}))
        await until(lambda: encoder.stats().lanes_busy == 1)
        gone = asyncio.Event()
        leaving = asyncio.create_task(leave(app, {"inputs": ["a", "b"]}, gone))
        await until(lambda: encoder.stats().queue_requests == 1)
        gone.set()
        await leaving
        gate.open()
        assert (await first).status == 200

    with caplog.at_level("INFO", "whiten.access"):
        asyncio.run(run())
    assert sum(" 499 " in record.message for record in caplog.records) == 1
    page = asked(app, "GET", "/metrics").body.decode()
    assert 'whiten_requests_total{client="",model="bundle-v1",route="/embed",status="499"} 1.0' in page
    assert 'whiten_dropped_total{reason="cancelled"} 1.0' in page


@pytest.mark.parametrize(("path", "status"), [("/v1/embeddings", 500), ("/embed", 424), ("/api/embed", 500)])
def test_a_failure_of_the_model_is_answered_and_logged(
    golden: Path, tmp_path: Path, path: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    write_broken_bundle(golden / "bundle-v1", tmp_path / "broken")
    answer = asked(AsyncEncoder(tmp_path / "broken").asgi_app(), "POST", path, {FIELDS[path]: "a"})
    assert (answer.status, "x-should-retry" in answer.headers) == (status, False)
    assert any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("texts", [["[bad]"], ["good", "better", "[bad]", "best"], ["good"] * 40 + ["[bad]"]])
def test_a_text_without_a_vector_is_named(golden: Path, tmp_path: Path, texts: list[str]) -> None:
    bundle = copy_bundle(golden / "bundle-v1", tmp_path)
    add_token_without_row(bundle, "[bad]")
    app, place = AsyncEncoder(bundle).asgi_app(), texts.index("[bad]")

    async def run() -> list[Any]:
        paths = [*FIELDS, "/similarity"]
        bodies: list[Any] = [{FIELDS[path]: texts} for path in FIELDS]
        bodies.append({"inputs": {"source_sentence": "a", "sentences": texts}})
        good = [ask(app, "POST", path, {field: ["good", "best"]}) for path, field in FIELDS.items()]
        asked = [ask(app, "POST", path, body) for path, body in zip(paths, bodies, strict=True)]
        return await asyncio.gather(*asked, *good)

    openai, tei, ollama, similarity, *good = asyncio.run(run())
    assert [answer.status for answer in good] == [200] * 3
    error = openai.json()["error"]
    assert (openai.status, error["type"], error["code"]) == (400, "invalid_request_error", "no_vector")
    assert error["param"] == f"input[{place}]"
    assert error["message"].startswith(f"input[{place}] ")
    assert (tei.status, tei.json()["error_type"], ollama.status) == (422, "Backend", 400)
    assert tei.json()["error"].startswith(f"inputs[{place}] ")
    assert f"sentences[{place}] " in similarity.json()["error"]
    assert {answer.headers["x-should-retry"] for answer in (openai, tei, ollama, similarity)} == {"false"}


@pytest.mark.parametrize("path", FIELDS)
def test_so_many_requests_at_once(gated: Any, path: str) -> None:
    encoder, gate = gated
    encoder._queue.scheduler._tokens.limit = 100_000
    app = encoder.asgi_app()
    app.state.service.budget.requests.limit = 3

    async def run() -> None:
        tasks = [asyncio.create_task(ask(app, "POST", path, {FIELDS[path]: "a"})) for _ in range(3)]
        await until(lambda: app.state.service.budget.requests.total == 3)
        refused = await ask(app, "POST", path, endless())
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert (await ask(app, "GET", "/info")).json()["max_concurrent_requests"] == 3
        assert (await ask(app, "GET", "/ready")).status == 200
        gate.open()
        assert [answer.status for answer in await asyncio.gather(*tasks)] == [200] * 3
        assert (await ask(app, "POST", path, {FIELDS[path]: "a"})).status == 200

    asyncio.run(run())
    assert 'whiten_rejected_total{reason="requests"} 1.0' in app.state.service.metrics.page().decode()


def test_tokenising_ends_with_its_caller(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    count, tokens, threads = [0], Encoder.tokens, app.state.service.models.scheduler.lanes

    def slow(*arguments: Any, **options: Any) -> Any:
        count[0] += 1
        time.sleep(0.05)
        return tokens(*arguments, **options)

    async def run() -> None:
        body = {"inputs": ["a" * 900] * 100}
        late = [ask(app, "POST", "/tokenize", body, {"x-timeout-ms": "150"}) for _ in range(20)]
        assert {answer.status for answer in await asyncio.gather(*late)} == {504}
        before = count[0]
        assert 0 < before < 2000
        assert (await ask(app, "POST", "/tokenize", {"inputs": "a"})).status == 200
        assert count[0] - before <= 20 * threads  # those that a thread has, and that of the last request

    monkeypatch.setattr(Encoder, "tokens", slow)
    asyncio.run(run())
