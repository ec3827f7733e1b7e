"""The application around the routes: order of checks, methods, ids, own routes, starting and mounting."""

import asyncio
from typing import Any

import pytest

from support.asgi import asked
from support.cli import python
from support.vectors import assert_near
from whiten import Encoder, UsageError

EMBEDDINGS = "/v1/embeddings"


def test_own_routes(app: Any) -> None:
    assert asked(app, "GET", "/live").body == b"live\n"
    assert asked(app, "GET", "/ready").body == b"ready\n"
    about = asked(app, "GET", "/")
    assert about.headers["content-type"].startswith("text/plain")
    assert b"tiny" in about.body
    assert b"whiten_ready 1.0" in asked(app, "GET", "/metrics").body


def test_ready_says_no_while_the_server_drains(app: Any) -> None:
    app.state.service.draining = True
    late = asked(app, "GET", "/ready")
    assert (late.status, late.json()["error"]["code"], late.headers["connection"]) == (503, "draining", "close")
    assert late.headers["retry-after"] == "1"
    answered = asked(app, "POST", EMBEDDINGS, {"input": "a"})
    assert (answered.status, answered.headers["connection"]) == (200, "close")
    assert asked(app, "GET", "/live").status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "dialect"),
    [
        ("GET", EMBEDDINGS, 405, "openai"),
        ("DELETE", "/embed", 405, "openai"),
        ("POST", "/info", 405, "openai"),
        ("PUT", "/models/tiny/embed", 405, "tei"),
        ("GET", "/api/embed", 405, "ollama"),
        ("PUT", "/v1/models/tiny", 405, "openai"),
        ("GET", "/api/nothing", 404, "ollama"),
        ("POST", "/rerank", 404, "openai"),
        ("GET", "/nothing", 404, "openai"),
        ("POST", "/v1", 404, "openai"),
    ],
)
def test_paths_and_methods_that_are_not_there(app: Any, method: str, path: str, status: int, dialect: str) -> None:
    answer = asked(app, method, path)
    assert answer.status == status
    assert ("allow" in answer.headers) == (status == 405)
    assert set(answer.json()) == ({"error", "error_type"} if dialect == "tei" else {"error"})
    assert isinstance(answer.json()["error"], dict) == (dialect == "openai")


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("POST", "//embed", "POST '/embed'"),
        ("POST", "/v1//embeddings", "POST '/v1/embeddings'"),
        ("POST", "/v1/v1/embeddings", "POST '/v1/embeddings'"),
        ("POST", "/api/v1/embeddings", "POST '/v1/embeddings'"),
        ("GET", "/v1/v1/embeddings", "POST '/v1/embeddings'"),
        ("POST", "/embed/", "POST '/embed'"),
        ("POST", "/v1/embeddings/", "POST '/v1/embeddings'"),
        ("POST", "/v1/embed", "POST '/embed'"),
        ("POST", "/api/api/embed", "POST '/api/embed'"),
        ("GET", "/api/v1/models", "GET '/v1/models'"),
        ("GET", "/v1//models/tiny", "GET '/v1/models/tiny'"),
        ("GET", "/metrics/", "GET '/metrics'"),
        ("POST", "//", "POST '/'"),
        ("POST", "/x/models/tiny/embed", "POST '/models/tiny/embed'"),
        ("POST", "/a" * 500 + "/embed", "POST '/embed'"),
        ("POST", "/rerank", ""),
        ("GET", "/" * 3000 + "nothing" * 300, ""),
    ],
)
def test_the_right_path_is_named(app: Any, method: str, path: str, right: str) -> None:
    answer = asked(app, method, path)
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert answer.status == 404
    assert message.partition("; ")[2] == (
        f"did you mean {right}?" if right else "the routes are those of OpenAI, TEI and Ollama"
    )
    assert len(message) < 300


@pytest.mark.parametrize("strips", [True, False])
def test_a_path_in_front_of_all_routes(app_with: Any, strips: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A gateway may take the path away, or leave it there."""
    app, front = app_with(root_path="/team/a.b", cors_origins=("*",)), "" if strips else "/team/a.b"
    with caplog.at_level("INFO", "whiten.access"):
        for path in ("/v1/embeddings", "/openai/deployments/tiny/embeddings"):
            assert asked(app, "POST", front + path, {"input": "a"}, headers={"origin": "https://a.b"}).status == 200
        for path in ("/embed", "/models/tiny/embed", "/models/tiny", front and "/", ""):
            assert asked(app, "POST", front + path, {"inputs": "a"}).status == 200, path
        assert asked(app, "POST", front + "/api/embed", {"input": "a"}).status == 200
        for path in (
            "/live",
            "/ready",
            "/health",
            "/models/tiny/health",
            "/v1/models",
            "/v1/models/tiny",
            "/info",
            "/",
        ):
            assert asked(app, "GET", front + path).status == 200, path
        metrics = asked(app, "GET", front + "/metrics").body.decode()
    assert 'route="/v1/embeddings"' in metrics
    assert "team" not in metrics
    assert not any("team" in record.getMessage() for record in caplog.records if record.name == "whiten.access")
    wrong = asked(app, "POST", front + "/api//embed").json()["error"]
    assert wrong == f"there is no '{front}/api//embed' here; did you mean POST '{front}/api/embed'?"
    assert asked(app, "GET", front + "/embed").status == 405
    assert asked(app, "POST", "/other/embed", {"inputs": "a"}).status == 404


@pytest.mark.parametrize("path", ["/models/tiny", "/v1/models/foo", "/openai/deployments/x", "/embed", "/models"])
def test_a_path_that_a_route_takes_is_not_in_front(app_with: Any, path: str) -> None:
    with pytest.raises(UsageError, match="would be two routes; choose another"):
        app_with(root_path=path)


def test_nothing_of_opentelemetry_is_imported_by_the_package() -> None:
    code = "import sys, whiten_serving.http.app; sys.exit('opentelemetry' in sys.modules)"
    assert python(code).returncode == 0


@pytest.mark.slow
def test_a_span_of_the_asgi_instrumentation_says_what_a_request_was(app: Any) -> None:
    pytest.importorskip("opentelemetry.instrumentation.asgi", reason="needs the extra test-all")
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traced = OpenTelemetryMiddleware(app, exclude_spans=["send", "receive"], tracer_provider=provider)
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    asked(traced, "POST", EMBEDDINGS, {"input": ["a", "b"]}, headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
    (span,) = exporter.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == trace
    assert span.attributes["whiten.texts"] == 2


def test_mounted_in_starlette(served: Any, reference: Encoder) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    outer = Starlette(routes=[Mount("/embeddings", served.asgi_app("tiny", api_keys=("k",)))])
    assert asked(outer, "POST", "/embeddings/embed", {"inputs": "a"}).status == 401
    answer = asked(outer, "POST", "/embeddings/embed", {"inputs": "a"}, headers={"x-api-key": "k"})
    assert_near(answer.json(), reference.encode(["a"], normalize_embeddings=True))
    assert asked(outer, "GET", "/embeddings/nothing").json()["error"]["message"].startswith("there is no '/nothing'")


def test_ids_of_requests(app: Any) -> None:
    assert asked(app, "GET", "/live", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = {asked(app, "GET", "/live").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    for bad in ("a b", "x" * 129, "a\xe9", ""):
        assert asked(app, "GET", "/live", headers={"x-request-id": bad}).headers["x-request-id"] != bad
    assert asked(app, "GET", "/nothing", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"


def test_an_unforeseen_error_is_500_and_does_not_end_the_application(
    app: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("secret text")

    with monkeypatch.context() as patched:
        patched.setattr(type(app.state.service.inputs), "texts", fail)
        answer = asked(app, "POST", EMBEDDINGS, {"input": "a"})
    assert (answer.status, answer.json()["error"]["code"]) == (500, "engine")
    assert "secret" not in answer.body.decode()
    assert caplog.records
    assert asked(app, "POST", EMBEDDINGS, {"input": "a"}).status == 200


def test_a_lifespan_passes_through(app: Any) -> None:
    async def main() -> list[str]:
        messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
        sent: list[str] = []

        async def receive() -> Any:
            return next(messages)

        async def send(message: Any) -> None:
            sent.append(message["type"])

        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
        return sent

    assert asyncio.run(main()) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
