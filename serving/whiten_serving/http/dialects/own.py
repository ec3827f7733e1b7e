"""Answer our own routes: probes, metrics, and what this server is."""

from whiten_serving.http.about import version
from whiten_serving.http.call import Call, Reply
from whiten_serving.http.errors import ApiError
from whiten_serving.http.service import Service

_TEXT = b"text/plain; charset=utf-8"


async def live(service: Service, call: Call) -> Reply:
    """Answer GET /live: the process runs."""
    return Reply(b"live\n", content_type=_TEXT)


async def ready(service: Service, call: Call) -> Reply:
    """Answer GET /ready and TEI's and SageMaker's probes: requests are welcome.

    Raises:
        ApiError: they are not, because models are not proven yet or the server is about to stop; or the path names a
            model that is not there.
    """
    if "model" in call.values:
        service.model(call.values["model"])
    if service.state.draining:
        raise ApiError("draining", "the server is about to stop")
    if not service.state.ready:
        raise ApiError("not_ready", "the server is not ready yet")
    return Reply(b"ready\n", content_type=_TEXT)


async def metrics(service: Service, call: Call) -> Reply:
    """Answer GET /metrics."""
    return Reply(service.metrics.page(), content_type=service.metrics.content_type)


async def about(service: Service, call: Call) -> Reply:
    """Answer GET /."""
    names = ", ".join(service.models.names)
    text = f"whiten {version()}: embeddings by {names}; routes: /openapi.json, options: /info, metrics: /metrics\n"
    return Reply(text.encode(), content_type=_TEXT)
