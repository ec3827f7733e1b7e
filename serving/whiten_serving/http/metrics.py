"""Count requests and what they cost, for Prometheus."""

from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from whiten_serving.http.calls import Budget
from whiten_serving.http.models import Models
from whiten_serving.requests import Batch

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Metrics:
    """Metrics of one application, in a registry of its own."""

    def __init__(self, models: Models, budget: Budget, accepting: Callable[[], bool]) -> None:
        self.registry = registry = CollectorRegistry()
        self.content_type: str = CONTENT_TYPE_LATEST
        route, model = ("route", "model"), ("model",)
        self._requests = Counter(
            "whiten_requests", "Requests that were answered.", (*route, "client", "status"), registry=registry
        )
        self._seconds = _histogram(
            registry, "request_seconds", "Time from a request to its answer.", _SECONDS, (*route, "status")
        )
        self._tokenize = _histogram(registry, "tokenize_seconds", "Time of tokenising a request.", _SECONDS, model)
        self._queue = _histogram(registry, "queue_seconds", "Time that a request waited.", _SECONDS, model)
        self._run = _histogram(
            registry, "run_seconds", "Time from a request's first batch to its last.", _SECONDS, model
        )
        self._texts = Counter("whiten_texts", "Texts of answered requests.", model, registry=registry)
        self._tokens = Counter("whiten_tokens", "Tokens of answered requests.", model, registry=registry)
        self._truncated = Counter("whiten_truncated", "Texts that were cut.", model, registry=registry)
        self._batch_texts = _histogram(registry, "batch_texts", "Texts of a batch.", _TEXTS)
        self._batch_tokens = _histogram(registry, "batch_tokens", "Tokens of a batch, without padding.", _TOKENS)
        self._counter = cache(self._requests.labels)
        self._of_route = cache(self._seconds.labels)
        self._of_model = cache(self._children)
        ready = Gauge("whiten_ready", "Whether requests are welcome.", registry=registry)
        ready.set_function(lambda: float(accepting()))
        registry.register(_OfModels(models, budget))
        ProcessCollector(registry=registry)

    def on_batch(self, batch: Batch) -> None:
        """Count a batch; called in the lanes' threads."""
        self._batch_texts.observe(batch.texts)
        self._batch_tokens.observe(batch.tokens)

    def count(self, route: str, model: str, client: str, status: int, seconds: float) -> None:
        """Count a request that was answered, or whose caller has gone."""
        self._counter(route, model, client, str(status)).inc()
        self._of_route(route, model, f"{status // 100}xx").observe(seconds)

    def count_texts(
        self, model: str, texts: int, tokens: int, truncated: int, times: tuple[float, float, float]
    ) -> None:
        """Count the texts of a request that was computed: the seconds are of tokenising, waiting and computing."""
        counted, parts = self._of_model(model)
        for counter, number in zip(counted, (texts, tokens, truncated), strict=True):
            if number:
                counter.inc(number)
        for histogram, seconds in zip(parts, times, strict=True):
            histogram.observe(seconds)

    def _children(self, model: str) -> tuple[tuple[Counter, ...], tuple[Histogram, ...]]:
        counters, histograms = (self._texts, self._tokens, self._truncated), (self._tokenize, self._queue, self._run)
        return tuple(one.labels(model) for one in counters), tuple(one.labels(model) for one in histograms)

    def page(self) -> bytes:
        """Return the metrics as Prometheus reads them."""
        page: bytes = generate_latest(self.registry)
        return page


def _histogram(
    registry: CollectorRegistry, name: str, what: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
) -> Histogram:
    return Histogram(f"whiten_{name}", what, labels, buckets=buckets, registry=registry)


class _OfModels:
    """Reads what models and their scheduler say when the page is asked for."""

    def __init__(self, models: Models, budget: Budget) -> None:
        self._models, self._budget = models, budget

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are read rather than counted."""
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
            if one.parity is not None:
                parity.add_metric([one.name], one.parity)
        yield info
        yield parity
        stats = self._models.scheduler.stats()
        counted, budget = stats.counted, self._budget
        for name, what, value in (
            ("lanes_busy", "Batches that run.", stats.lanes_busy),
            ("queue_requests", "Requests of which texts wait.", stats.queue_requests),
            ("queue_tokens", "Tokens that wait.", stats.queue_tokens),
            ("in_flight_requests", "POST requests that are worked on.", budget.requests.total),
            ("in_flight_bytes", "Memory that their bodies take, and what is decoded of them.", budget.bytes.total),
            ("queue_work_seconds", "Time that the waiting work takes.", stats.queue_seconds),
            ("oldest_batch_seconds", "Time for which the oldest batch has run.", stats.oldest_seconds),
        ):
            yield GaugeMetricFamily(f"whiten_{name}", what, value)
        yield from self._of_queues()
        yield CounterMetricFamily("whiten_padding_tokens", "Tokens of padding that were computed.", counted.padding)
        for name, what, reasons in (
            ("rejected", "Requests that were refused.", {"queue_full": counted.rejected, **budget.refused}),
            (
                "dropped",
                "Requests dropped before they were computed.",
                {"cancelled": counted.cancelled, "expired": counted.expired},
            ),
        ):
            family = CounterMetricFamily(f"whiten_{name}", what, labels=["reason"])
            for reason, count in reasons.items():
                family.add_metric([reason], count)
            yield family

    def _of_queues(self) -> Iterator[Metric]:
        """Yield what waits of each model, and how fast each is computed."""
        stats = {one.name: self._models.scheduler.stats_of(one.queue.runner) for one in self._models}
        for name, what, attribute in (
            ("model_queue_requests", "Requests of a model of which texts wait.", "requests"),
            ("model_queue_tokens", "Tokens of a model that wait.", "tokens"),
            ("model_queue_work_seconds", "Time that the waiting work of a model takes.", "seconds"),
        ):
            family = GaugeMetricFamily(f"whiten_{name}", what, labels=["model"])
            for model, one in stats.items():
                family.add_metric([model], getattr(one, attribute))
            yield family


@cache
def version() -> str:
    """Return the version of the installed distribution; "0" if it runs from its source without being installed."""
    try:
        return metadata.version("whiten")
    except metadata.PackageNotFoundError:
        return "0"
