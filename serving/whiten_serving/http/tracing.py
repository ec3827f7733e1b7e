"""Tell OpenTelemetry of requests, if the process has set it up; otherwise nothing of it is imported."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from whiten_serving.http.call import Call

Span = Callable[[Call], AbstractContextManager[None]]
"""Function that returns a context for the time of a request, which is described when it ends."""

_NOTHING = nullcontext()


def make_span() -> Span:
    """Return what makes spans; while nobody has set a provider of tracers, whose spans they are, it does nothing.

    A span that nobody gets would cost each request as much as its metrics.
    """
    made: Span | None = None

    def span(call: Call) -> AbstractContextManager[None]:
        nonlocal made
        trace = sys.modules.get("opentelemetry.trace")
        if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return _NOTHING
        made = made or _spans()
        return made(call)

    return span


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
