"""Say on a terminal what is served, where, and how to call it."""

from collections.abc import Iterator, Sequence

from whiten_runtime.bundle.parity import Agreement
from whiten_serving.batching.lanes import Lanes
from whiten_serving.http.models import ServedModel
from whiten_serving.server.sockets import Listeners
from whiten_serving.settings.table import Settings


def url(listeners: Listeners, settings: Settings) -> str:
    """Return the address with its scheme; an address that stands for all of a machine as this machine's own."""
    scheme = "https" if settings.tls_cert else "http"
    if listeners.address.startswith("unix:"):
        return f"{scheme}://localhost"
    host, _, port = listeners.address.rpartition(":")
    return f"{scheme}://{ {'0.0.0.0': '127.0.0.1', '[::]': '[::1]'}.get(host, host) }:{port}"


def banner(
    settings: Settings,
    listeners: Listeners,
    models: Sequence[ServedModel],
    agreements: dict[str, Agreement],
    lanes: Lanes,
    keys: int,
) -> Iterator[str]:
    """Yield the lines that a terminal shows when requests are answered."""
    scheme = "https" if settings.tls_cert else "http"
    where = listeners.address if listeners.address.startswith("unix:") else f"{scheme}://{listeners.address}"
    yield f"serving on {where}"
    for model in models:
        yield f"  {describe(model, agreements.get(model.name))}"
    yield (
        f"  {lanes.count} batches at once, of {lanes.budget} tokens; up to {lanes.bounds.queue_tokens} tokens or "
        f"{settings.max_wait:g} s of work wait"
    )
    yield f"  keys: {keys or 'none, everybody who reaches the address may call'}"
    yield f"  {curl(listeners, settings, keys > 0)}"
    yield "Ctrl-C drains and stops"


def describe(model: ServedModel, agreement: Agreement | None) -> str:
    """Return one line about a model: dimension, precision, space, parity."""
    manifest, encoder = model.manifest, model.encoder
    parity = f"parity proven on {encoder.providers[0]}: {agreement}" if agreement else "parity not checked"
    return f"{model.name}: {manifest.dimension} dimensions, {manifest.precision}, space {encoder.space}; {parity}"


def curl(listeners: Listeners, settings: Settings, key: bool) -> str:
    """Return a command that embeds a text."""
    parts = ["curl", f"{url(listeners, settings)}/v1/embeddings"]
    if listeners.address.startswith("unix:"):
        parts += ["--unix-socket", listeners.address.removeprefix("unix:")]
    if settings.tls_cert:
        parts += ["--cacert", settings.tls_cert]
    if key:
        parts += ["-H", "'authorization: Bearer KEY'"]
    return " ".join([*parts, "-d", """'{"input": "A text."}'"""])
