"""The application around the routes: order of checks, methods, ids, own routes, starting and mounting."""

import asyncio
from typing import Any

import pytest

from support.asgi import Client, ask, asked, assert_near, scope_of
from whiten_runtime import Encoder

EMBEDDINGS = "/v1/embeddings"


def test_own_routes(app: Any) -> None:
    assert asked(app, "GET", "/live").body == b"live\n"
    assert asked(app, "GET", "/ready").body == b"ready\n"
    about = asked(app, "GET", "/")
    assert about.headers["content-type"].startswith("text/plain")
    assert b"tiny" in about.body
    assert b"whiten_ready 1.0" in asked(app, "GET", "/metrics").body


def test_ready_says_no_before_the_server_is_ready_and_while_it_drains(app_with: Any) -> None:
    app = app_with()
    app.state.ready = False
    early = asked(app, "GET", "/ready")
    assert (early.status, early.json()["error"]["code"], early.headers["retry-after"]) == (503, "not_ready", "1")
    refused = asked(app, "POST", EMBEDDINGS, {"input": "a"})
    assert (refused.status, refused.json()["error"]["type"]) == (503, "service_unavailable")
    assert refused.headers["connection"] == "close"
    assert asked(app, "GET", "/live").status == 200
    app.state.ready = app.state.draining = True
    late = asked(app, "GET", "/ready")
    assert (late.status, late.json()["error"]["code"], late.headers["connection"]) == (503, "draining", "close")
    answered = asked(app, "POST", EMBEDDINGS, {"input": "a"})
    assert (answered.status, answered.headers["connection"]) == (200, "close")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", EMBEDDINGS, "POST, OPTIONS"),
        ("DELETE", "/embed", "POST, OPTIONS"),
        ("PUT", "/", "POST, GET, HEAD, OPTIONS"),
        ("POST", "/info", "GET, HEAD, OPTIONS"),
        ("POST", "/v1/models/tiny", "GET, HEAD, OPTIONS"),
    ],
)
def test_wrong_methods(app: Any, method: str, path: str, allow: str) -> None:
    answer = asked(app, method, path)
    assert (answer.status, answer.headers["allow"]) == (405, allow)
    choices = asked(app, "OPTIONS", path)
    assert (choices.status, choices.headers["allow"], choices.body) == (204, allow, b"")


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1", "/v1/models/", "/models/tiny/live", "/models//embed", "//", "/v1/x"]
)
def test_unknown_paths(app: Any, path: str) -> None:
    answer = asked(app, "POST", path, {"input": "a"})
    if path == "/v1/models/":
        assert answer.status == 405
        return
    error = answer.json()["error"]
    assert answer.status == 404
    assert "there is no" in (error if path.startswith("/models/") else error["message"])
    assert asked(app, "OPTIONS", path).status == 404


@pytest.mark.parametrize(
    ("method", "path", "dialect"),
    [
        ("GET", "/embed", "tei"),
        ("POST", "/info", "tei"),
        ("PUT", "/models/tiny/embed", "tei"),
        ("GET", "/api/embed", "ollama"),
        ("GET", "/api/nothing", "ollama"),
        ("GET", EMBEDDINGS, "openai"),
        ("PUT", "/v1/models/tiny", "openai"),
        ("GET", "/nothing", "openai"),
    ],
)
def test_errors_about_paths_have_the_shape_of_their_dialect(app: Any, method: str, path: str, dialect: str) -> None:
    answer = asked(app, method, path)
    assert answer.status in (404, 405)
    wanted = {"tei": {"error", "error_type"}, "ollama": {"error"}, "openai": {"error"}}
    assert set(answer.json()) == wanted[dialect]
    assert isinstance(answer.json()["error"], dict) == (dialect == "openai")


def test_probes_of_a_model_that_is_not_there(served: Any) -> None:
    from whiten_serving.http.app import App
    from whiten_serving.http.models import Models, ServedModel

    app = App(Models([ServedModel("one", served), ServedModel("two", served)]))
    assert asked(app, "GET", "/models/one/health").status == 200
    answer = asked(app, "GET", "/models/nope/health")
    assert (answer.status, answer.json()["error_type"]) == (404, "Validation")


def test_head_has_the_headers_of_get(app: Any) -> None:
    for path in ("/v1/models", "/live", "/ping"):
        got, head = asked(app, "GET", path), asked(app, "HEAD", path)
        assert (head.status, head.body) == (got.status, b"")
        assert head.headers["content-length"] == got.headers["content-length"]


def test_ids_of_requests(app: Any) -> None:
    assert asked(app, "GET", "/live", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = {asked(app, "GET", "/live").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    for bad in ("a b", "x" * 129, "a\xe9", ""):
        assert asked(app, "GET", "/live", headers={"x-request-id": bad}).headers["x-request-id"] != bad
    assert asked(app, "GET", "/nothing", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"


def test_below_another_path(app: Any, reference: Encoder) -> None:
    answer = asked(app, "POST", "/embed", {"inputs": "a"}, root="/below/here")
    assert_near(answer.json(), reference.encode(["a"], normalize_embeddings=True))
    assert asked(app, "GET", "", root="/below").status == 200
    stripped = scope_of("GET", "/live", {})
    stripped["root_path"] = "/below"
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(stripped, Client([]).receive, send))
    assert sent[0]["status"] == 200


def test_lifespan_and_websockets(app: Any) -> None:
    notices = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(notices)

    async def connect() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    asyncio.run(app({"type": "lifespan"}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    asyncio.run(app({"type": "websocket"}, connect, send))
    assert sent[-1] == "websocket.close"


@pytest.mark.slow
def test_mounted_in_starlette(served: Any, reference: Encoder) -> None:
    applications = pytest.importorskip("starlette.applications", reason="needs the extra test-all")
    import httpx
    from starlette.routing import Mount

    outer = applications.Starlette(routes=[Mount("/embeddings", served.asgi_app("tiny", api_keys=("k",)))])

    async def run() -> Any:
        transport = httpx.ASGITransport(outer)
        async with httpx.AsyncClient(transport=transport, base_url="http://here/embeddings") as client:
            refused = await client.post("/embed", json={"inputs": "a"})
            return refused, await client.post("/embed", json={"inputs": "a"}, headers={"x-api-key": "k"})

    refused, answer = asyncio.run(run())
    assert (refused.status_code, answer.status_code) == (401, 200)
    assert_near(answer.json(), reference.encode(["a"], normalize_embeddings=True))


def test_an_unforeseen_error_is_500_and_does_not_end_the_application(
    app: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("secret text")

    with monkeypatch.context() as patched:
        patched.setattr(type(app._service.inputs), "texts", fail)
        answer = asked(app, "POST", EMBEDDINGS, {"input": "a"})
    assert (answer.status, answer.json()["error"]["code"]) == (500, "engine")
    assert "secret" not in answer.body.decode()
    assert caplog.records
    assert asked(app, "POST", EMBEDDINGS, {"input": "a"}).status == 200


def test_options_can_be_set_while_it_serves(app_with: Any) -> None:
    from dataclasses import replace

    app = app_with(api_keys=("old",))
    assert asked(app, "GET", "/v1/models", headers={"api-key": "old"}).status == 200
    app.options = replace(app.options, api_keys=("new",))
    assert asked(app, "GET", "/v1/models", headers={"api-key": "old"}).status == 401
    assert asked(app, "GET", "/v1/models", headers={"api-key": "new"}).status == 200


def test_many_requests_at_once_get_their_own_vectors(app: Any, reference: Encoder) -> None:
    texts = [f"Sentence {index} " + "word " * (index % 40) for index in range(200)]

    async def run() -> list[Any]:
        return await asyncio.gather(
            *(ask(app, "POST", "/embed", {"inputs": text, "normalize": False}) for text in texts)
        )

    found = [answer.json()[0] for answer in asyncio.run(run())]
    assert_near(found, [reference.encode(text) for text in texts])
