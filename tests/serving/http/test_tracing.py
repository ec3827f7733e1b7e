"""Spans of OpenTelemetry, where it is installed."""

import subprocess
import sys
from typing import Any

import pytest

from support.asgi import asked

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_nothing_of_it_is_imported_by_the_package() -> None:
    code = "import sys, whiten_serving.http.app; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_a_span_goes_on_with_the_callers_trace(app_with: Any) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs the extra test-all")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    app = app_with()
    headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    asked(app, "POST", "/v1/embeddings", {"input": ["a", "b"]}, headers=headers)
    (span,) = exporter.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == TRACE
    assert span.name == "POST /v1/embeddings"
    assert (span.attributes["http.response.status_code"], span.attributes["whiten.texts"]) == (200, 2)
