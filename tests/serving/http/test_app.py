"""The application around the routes: ids of requests, what is logged, starting and mounting."""

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from support.asgi import asked
from support.vectors import assert_near
from whiten import Encoder, UsageError
from whiten_serving.http.app import check_paths

EMBEDDINGS = "/v1/embeddings"


@pytest.mark.parametrize("name", ["one/embed", "one/tokenize", "one/similarity", "one/invocations", "a{b}"])
def test_a_model_whose_own_path_would_be_another_route_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"'/models/{name}")):
        check_paths(["one", name], "")


def test_the_path_in_front_is_neither_logged_nor_counted(app_with: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A gateway may take the path away, or leave it there."""
    app = app_with(root_path="/team/a.b")
    with caplog.at_level("INFO", "whiten.access"):
        for path in ("/team/a.b/v1/embeddings", "/v1/embeddings"):
            assert asked(app, "POST", path, {"input": "a"}).status == 200
    page = asked(app, "GET", "/team/a.b/metrics").body.decode()
    assert 'route="/v1/embeddings"' in page
    assert "team" not in page
    lines = [record.getMessage() for record in caplog.records if record.name == "whiten.access"]
    assert len(lines) == 2
    assert "team" not in "".join(lines)


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
    assert asked(outer, "GET", "/embeddings/nothing", headers={"x-api-key": "k"}).status == 404


def test_ids_of_requests_that_are_not_taken_over(app: Any) -> None:
    made = {asked(app, "GET", "/live").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    for bad in ("a b", "x" * 129, "a\xe9", ""):
        assert asked(app, "GET", "/live", headers={"x-request-id": bad}).headers["x-request-id"] != bad


def test_a_lifespan_passes_through(app: Any) -> None:
    with TestClient(app) as client:
        assert client.get("/live").status_code == 200
