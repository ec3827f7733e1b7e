"""Tell OpenTelemetry of requests, if it is installed; otherwise nothing of it is imported."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec

from whiten_serving.http.call import Call

Span = Callable[[Call], AbstractContextManager[None]]
"""Function that returns a context for the time of a request, which is described when it ends."""


def make_span() -> Span:
    """Return what makes spans; where OpenTelemetry is not installed, it does nothing."""
    return _spans() if find_spec("opentelemetry") is not None else lambda call: nullcontext()


def _spans() -> Span:
    from opentelemetry import propagate, trace
    from opentelemetry.trace import SpanKind

    tracer = trace.get_tracer("whiten_serving")

    @contextmanager
    def span(call: Call) -> Iterator[None]:
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()}
        above = propagate.extract(carrier)
        with tracer.start_as_current_span("request", context=above, kind=SpanKind.SERVER) as current:
            try:
                yield
            finally:
                if current.is_recording():
                    current.update_name(f"{call.method} {call.route}")
                    for name, value in _attributes(call).items():
                        current.set_attribute(name, value)

    return span


def _attributes(call: Call) -> dict[str, str | int | float]:
    return {
        "http.request.method": call.method,
        "http.route": call.route,
        "http.response.status_code": call.status,
        "whiten.request_id": call.id,
        "whiten.model": call.model,
        "whiten.texts": call.texts,
        "whiten.tokens": call.tokens,
        "whiten.queue_seconds": call.queue_seconds,
        "whiten.run_seconds": call.run_seconds,
    }
