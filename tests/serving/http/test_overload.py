"""Requests that come while too much waits, callers that go, deadlines, and a model that fails."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import pytest

from support.asgi import FIELDS, ask, asked, metric, until
from support.vectors import token_ids
from whiten import Encoder
from whiten_runtime.errors import NoVectorError, RunError
from whiten_serving import AsyncEncoder

TEXT = "word " * 40


async def leave(app: Callable[..., Any], path: str, parts: Iterable[bytes], gone: asyncio.Event) -> list[Any]:
    """Send a request, and go at an event after its body; return what the application sent all the same."""
    left, sent = list(parts), []

    async def receive() -> dict[str, Any]:
        if left:
            body = left.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(left)}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "query_string": b"", "headers": []}
    await app(scope, receive, send)
    return sent


class Gate:
    """Holds batches back until it is opened, and counts those that ran."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self._open = threading.Event()
        self.texts = 0
        self.fails: Callable[[Any], bool] = lambda ids: False

    def __call__(self, ids: Any, *arguments: Any, **named: Any) -> Any:
        assert self._open.wait(60)
        self.texts += len(ids)
        if self.fails(ids):
            raise RuntimeError("the graph failed on a secret")
        return self._run(ids, *arguments, **named)

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
        leaving = asyncio.create_task(leave(app, "/v1/embeddings", [b'{"input": ["a", "b"]}'], gone))
        await until(lambda: encoder.stats().queue_requests == 1)
        gone.set()
        assert await leaving == []
        gate.open()
        assert (await first).status == 200

    with caplog.at_level("INFO", "whiten.access"):
        asyncio.run(run())
    assert sum(" 499 " in record.message for record in caplog.records) == 1
    page = app.state.service.metrics.page().decode()
    assert 'whiten_requests_total{client="",model="bundle-v1",route="/v1/embeddings",status="499"} 1.0' in page
    assert 'whiten_dropped_total{reason="cancelled"} 1.0' in page


@pytest.mark.parametrize(("path", "status"), [("/v1/embeddings", 500), ("/embed", 424), ("/api/embed", 500)])
def test_a_failure_of_the_model_is_answered_and_logged(
    gated: Any, path: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    encoder, gate = gated
    gate.fails = lambda ids: True
    gate.open()
    answer = asked(encoder.asgi_app(), "POST", path, {FIELDS[path]: "a"})
    assert (answer.status, "x-should-retry" in answer.headers) == (status, False)
    assert any("RuntimeError" in str(record.exc_info) for record in caplog.records)


class Fails:
    """A runner's `run_batch` that gives NaN to one text, or on which onnxruntime fails for this text, in any batch."""

    def __init__(self, runner: Any, bad: list[int], how: str) -> None:
        self._runner, self._run, self._bad, self._how = runner, runner.run_batch, bad, how

    def __call__(self, ids: Any, *arguments: Any, **named: Any) -> Any:
        if self._bad in ids and self._how == "fails":
            error = RunError("onnxruntime failed: a bad gather")
            raise error if len(ids) > 1 else NoVectorError({0: f"has no vector ({error})"})
        vectors = self._run(ids, *arguments, **named)
        vectors[[row == self._bad for row in ids]] = float("nan")
        return vectors


@pytest.mark.parametrize("how", ["fails", "nan"])
@pytest.mark.parametrize("texts", [["bad"], ["good", "better", "bad", "best"], ["good"] * 40 + ["bad"]])
def test_a_text_without_a_vector_is_named(
    gated: Any, how: str, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, gate = gated
    gate.open()
    encoder._queue.scheduler._tokens.limit = 100_000
    runner, app = encoder._queue.runner, encoder.asgi_app()
    bad = token_ids(encoder._queue.encoder, ["bad"])[0]
    monkeypatch.setattr(runner, "run_batch", Fails(runner, bad, how))
    place = texts.index("bad")

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


def test_a_caller_that_goes_in_the_turn_of_its_deadline_is_answered_once(
    gated: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Both end the request, which must be told of one alone: a second cancellation would leave the application."""
    from whiten_serving.http.calls import Guarded
    from whiten_serving.http.errors import ClientGoneError

    encoder, _ = gated
    app = encoder.asgi_app(timeout=0.3)
    look = Guarded._look

    def both(guard: Any) -> None:
        look(guard)
        if guard._call.remaining <= 0:
            guard._end(ClientGoneError())

    with pytest.MonkeyPatch.context() as patched, caplog.at_level("INFO", "whiten.access"):
        patched.setattr(Guarded, "_look", both)
        answer = asyncio.run(ask(app, "POST", "/v1/embeddings", {"input": "a"}))
    assert (answer.status, answer.json()["error"]["code"]) == (504, "deadline")
    assert [" 504 " in record.message for record in caplog.records if record.name == "whiten.access"] == [True]
    assert metric(app, "whiten_in_flight_requests") == 0


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
