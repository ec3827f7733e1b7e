"""Count requests and what they cost, for Prometheus."""

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from whiten_serving.batching.counters import BatchRun
from whiten_serving.http.about import version
from whiten_serving.http.call import Call
from whiten_serving.http.models import Models
from whiten_serving.http.state import State
from whiten_serving.http.tallies import Buckets, Histograms, Total, Totals

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True)
class _Bound:
    """Holds the metrics of one route and model, looked up once."""

    seconds: Buckets
    tokenize: Buckets
    queue: Buckets
    run: Buckets
    texts: Total
    tokens: Total
    truncated: Total


class Metrics:
    """Holds the metrics of one application, in a registry of its own.

    Make it first, give `watch` to the `Lanes`, and then `attach` the models; `App` does so if it was not done.

    Attributes:
        registry: the registry; others may register their own collectors, such as drift.
        content_type: type of the page.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.content_type = CONTENT_TYPE_LATEST.encode()
        named = ("route", "model")
        model = ("model",)
        self._requests = Totals("requests", "Requests that were answered.", (*named, "status"))
        self._seconds = Histograms("request_seconds", "Time from a request to its answer.", _SECONDS, named)
        self._tokenize = Histograms("tokenize_seconds", "Time of tokenising a request.", _SECONDS, model)
        self._queue = Histograms("queue_seconds", "Time that a request waited in the queue.", _SECONDS, model)
        self._run = Histograms("run_seconds", "Time from a request's first batch to its last.", _SECONDS, model)
        self._texts = Totals("texts", "Texts of answered requests.", model)
        self._tokens = Totals("tokens", "Tokens of answered requests.", model)
        self._truncated = Totals("truncated", "Texts that were cut.", model)
        self._batch_texts = Histograms("batch_texts", "Texts of a batch.", _TEXTS)
        self._batch_tokens = Histograms("batch_tokens", "Tokens of a batch, without padding.", _TOKENS)
        self._batch_seconds = Histograms("batch_seconds", "Time of a batch.", _SECONDS)
        of_requests = (self._requests, self._seconds, self._tokenize, self._queue, self._run)
        of_texts = (self._texts, self._tokens, self._truncated)
        of_batches = (self._batch_texts, self._batch_tokens, self._batch_seconds)
        self._all: tuple[Totals | Histograms, ...] = (*of_requests, *of_texts, *of_batches)
        self._batches = Lock()
        self._bound: dict[tuple[str, str], _Bound] = {}
        self._counted: dict[tuple[str, str, int], Total] = {}
        self._attached = False
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def collect(self) -> Iterator[Metric]:
        """Yield what was counted; the registry calls this."""
        with self._batches:
            for one in self._all:
                yield from one.collect()

    def watch(self, run: BatchRun) -> None:
        """Count a batch; called in the lanes' threads."""
        with self._batches:
            self._batch_texts.of().add(run.texts)
            self._batch_tokens.of().add(run.tokens)
            self._batch_seconds.of().add(run.seconds)

    def attach(self, models: Models, state: State) -> None:
        """Show what waits and runs in the models' lanes, and the server's state. Only the first call has an effect."""
        if not self._attached:
            self._attached = True
            self.registry.register(_Gauges(models, state))

    def count(self, call: Call, seconds: float) -> None:
        """Count a request that was answered, or whose caller has gone."""
        key = call.route, call.model, call.status
        counter = self._counted.get(key)
        if counter is None:
            counter = self._counted[key] = self._requests.of(*map(str, key))
        counter.add()
        bound = self._bound.get(key[:2]) or self._bind(call.route, call.model)
        bound.seconds.add(seconds)
        if call.status == 200 and call.texts:
            bound.texts.add(call.texts)
            bound.tokens.add(call.tokens)
            if call.truncated:
                bound.truncated.add(call.truncated)
            if call.run_seconds:
                bound.tokenize.add(call.tokenize_seconds)
                bound.queue.add(call.queue_seconds)
                bound.run.add(call.run_seconds)

    def _bind(self, route: str, model: str) -> _Bound:
        bound = _Bound(
            self._seconds.of(route, model),
            self._tokenize.of(model),
            self._queue.of(model),
            self._run.of(model),
            self._texts.of(model),
            self._tokens.of(model),
            self._truncated.of(model),
        )
        self._bound[route, model] = bound
        return bound

    def page(self) -> bytes:
        """Return the metrics as Prometheus reads them."""
        page: bytes = generate_latest(self.registry)
        return page


class _Gauges:
    """Reads what lanes and state say when the page is asked for."""

    def __init__(self, models: Models, state: State) -> None:
        self._models, self._state = models, state

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are read rather than counted."""
        yield GaugeMetricFamily("whiten_ready", "Whether requests are welcome.", float(self._state.accepting))
        yield from self._of_models()
        stats = [lanes.stats() for lanes in {one.embeds.batcher.lanes for one in self._models}]
        gauges = {
            "lanes": ("Batches that can run at once.", sum(one.lanes for one in stats)),
            "lanes_busy": ("Batches that run.", sum(one.lanes_busy for one in stats)),
            "queue_requests": ("Requests of which texts wait.", sum(one.queue_requests for one in stats)),
            "queue_tokens": ("Tokens that wait.", sum(one.queue_tokens for one in stats)),
            "queue_seconds_of_work": ("Time that the waiting work takes.", max(one.queue_seconds for one in stats)),
            "tokens_per_second": ("Rate of the last batches.", sum(one.tokens_per_second for one in stats)),
        }
        for name, (what, value) in gauges.items():
            yield GaugeMetricFamily(f"whiten_{name}", what, value)
        counted = [one.counted for one in stats]
        yield _total("batches", "Batches that were computed.", sum(one.batches for one in counted))
        yield _total(
            "failed_batches", "Batches that failed, and were computed one by one.", sum(one.failed for one in counted)
        )
        yield _total("padding_tokens", "Tokens of padding that were computed.", sum(one.padding for one in counted))
        bodies = self._state.bodies
        yield GaugeMetricFamily("whiten_body_bytes", "Bytes of bodies whose requests are not answered.", bodies.bytes)
        rejected = {"queue_full": sum(one.rejected for one in counted), "bodies_full": bodies.refused}
        what = "Requests that were refused because too much waited, and what was refused before it was a request."
        yield _by_reason("rejected", what, {**rejected, **self._state.refused})
        dropped = {"departed": sum(one.departed for one in counted), "late": sum(one.late for one in counted)}
        yield _by_reason("dropped", "Requests that were dropped before they were computed.", dropped)

    def _of_models(self) -> Iterator[Metric]:
        info = InfoMetricFamily("whiten", "What is served.", labels=["model"])
        parity = GaugeMetricFamily("whiten_parity_cosine", "Worst cosine with the reference, here.", labels=["model"])
        for one in self._models:
            described = {
                "version": version(),
                "bundle_sha256": one.digest,
                "space": one.encoder.space,
                "precision": one.manifest.precision,
                "provider": one.encoder.providers[0],
            }
            info.add_metric([one.name], described)
            if one.name in self._state.parity:
                parity.add_metric([one.name], self._state.parity[one.name])
        yield info
        yield parity


def _total(name: str, what: str, value: float) -> Metric:
    return CounterMetricFamily(f"whiten_{name}", what, value)


def _by_reason(name: str, what: str, values: dict[str, int]) -> Metric:
    found = CounterMetricFamily(f"whiten_{name}", what, labels=["reason"])
    for reason, value in values.items():
        found.add_metric([reason], value)
    return found
