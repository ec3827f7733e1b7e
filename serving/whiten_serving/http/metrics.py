"""Count requests and what they cost, for Prometheus, and log a line for each."""

import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from typing import Any, Literal

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from whiten_serving.http.calls import Budget, Call
from whiten_serving.http.models import Models
from whiten_serving.requests import Batch

ACCESS = logging.getLogger("whiten.access")
"""Gets a line for each request, at level INFO, already formatted: its handlers should add nothing."""

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Metrics:
    """Metrics of one application, in a registry of its own."""

    def __init__(self, models: Models, budget: Budget, accepting: Callable[[], bool]) -> None:
        self.registry = CollectorRegistry()
        self.content_type: str = CONTENT_TYPE_LATEST
        self._models, self._budget = models, budget
        requests = self._counter("requests", "Requests that were answered.", "route", "model", "client", "status")
        seconds = self._histogram(
            "request_seconds", "Time from a request to its answer.", _SECONDS, "route", "model", "status"
        )
        of_texts = (
            self._counter("texts", "Texts of answered requests.", "model"),
            self._counter("tokens", "Tokens of answered requests.", "model"),
            self._counter("truncated", "Texts that were cut.", "model"),
            self._counter("zeros", "Texts whose vectors are zeros.", "model"),
            self._counter("repeated_prompts", "Texts that begin with the prompt that they get.", "model"),
            self._histogram("tokenize_seconds", "Time of tokenising a request.", _SECONDS, "model"),
            self._histogram("queue_seconds", "Time that a request waited.", _SECONDS, "model"),
            self._histogram("run_seconds", "Time from a request's first batch to its last.", _SECONDS, "model"),
        )
        self._batch_texts = self._histogram("batch_texts", "Texts of a batch.", _TEXTS)
        self._batch_tokens = self._histogram("batch_tokens", "Tokens of a batch, without padding.", _TOKENS)
        self._requests, self._seconds = cache(requests.labels), cache(seconds.labels)  # `labels` takes a lock
        self._of_texts = cache(lambda model: [one.labels(model) for one in of_texts])
        ready = Gauge("whiten_ready", "Whether requests are welcome.", registry=self.registry)
        ready.set_function(lambda: float(accepting()))
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"whiten_{name}", what, labels, registry=self.registry)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"whiten_{name}", what, labels, buckets=buckets, registry=self.registry)

    def on_batch(self, batch: Batch) -> None:
        """Count a batch; called in the lanes' threads."""
        self._batch_texts.observe(batch.texts)
        self._batch_tokens.observe(batch.tokens)

    def count(self, call: Call, seconds: float) -> None:
        """Count a request that was answered, or whose caller has gone."""
        self._requests(call.route, call.model, call.client, str(call.status)).inc()
        self._seconds(call.route, call.model, f"{call.status // 100}xx").observe(seconds)
        if call.status == 200 and call.run_seconds:
            texts, tokens, truncated, zeros, repeated, tokenize, queue, run = self._of_texts(call.model)
            texts.inc(call.texts)
            tokens.inc(call.tokens)
            for counter, number in (
                (truncated, call.truncated),
                (zeros, call.zeros),
                (repeated, call.repeated_prompts),
            ):
                if number:
                    counter.inc(number)
            tokenize.observe(call.tokenize_seconds)
            queue.observe(call.queue_seconds)
            run.observe(call.run_seconds)

    def page(self) -> bytes:
        """Return the metrics as Prometheus reads them."""
        page: bytes = generate_latest(self.registry)
        return page

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are read from models and their scheduler when the page is asked for."""
        models = {served.name: served for served in self._models}
        scheduler, budget = self._models.scheduler, self._budget
        runners = {model.queue.runner: name for name, model in reversed(models.items())}  # names of one bundle share it
        stats, of_models = scheduler.stats(), {name: scheduler.stats_of(runner) for runner, name in runners.items()}
        described = {
            name: {
                "version": version(),
                "bundle_sha256": served.digest,
                "space": served.encoder.space,
                "precision": served.manifest.precision,
                "provider": served.encoder.providers[0],
            }
            for name, served in models.items()
        }
        parities = {name: served.parity for name, served in models.items() if served.parity is not None}
        yield _family(InfoMetricFamily, "whiten", "What is served.", "model", described)
        gauge, counted = GaugeMetricFamily, stats.counted
        yield _family(gauge, "whiten_parity_cosine", "Worst cosine with the reference, here.", "model", parities)
        for name, what, value in (
            ("lanes_busy", "Batches that run.", stats.lanes_busy),
            ("queue_requests", "Requests of which texts wait.", stats.queue_requests),
            ("queue_tokens", "Tokens that wait.", stats.queue_tokens),
            ("in_flight_requests", "POST requests that are worked on.", budget.requests.total),
            ("in_flight_bytes", "Memory that their bodies take, and what is decoded of them.", budget.bytes.total),
            ("queue_work_seconds", "Time that the waiting work takes.", stats.queue_seconds),
            ("oldest_batch_seconds", "Time for which the oldest batch has run.", stats.oldest_seconds),
        ):
            yield gauge(f"whiten_{name}", what, value)
        for name, what, field in (
            ("requests", "Requests of a model of which texts wait.", "requests"),
            ("tokens", "Tokens of a model that wait.", "tokens"),
            ("work_seconds", "Time that the waiting work of a model takes.", "seconds"),
        ):
            values = {model: getattr(one, field) for model, one in of_models.items()}
            yield _family(gauge, f"whiten_model_queue_{name}", what, "model", values)
        yield CounterMetricFamily("whiten_padding_tokens", "Tokens of padding that were computed.", counted.padding)
        rejected = {"queue_full": counted.rejected, **budget.refused}
        dropped = {"cancelled": counted.cancelled, "expired": counted.expired}
        family = CounterMetricFamily
        yield _family(family, "whiten_rejected", "Requests that were refused.", "reason", rejected)
        yield _family(family, "whiten_dropped", "Requests dropped before they were computed.", "reason", dropped)


def _family(kind: Any, name: str, what: str, label: str, values: dict[str, Any]) -> Metric:
    """Return a metric of a value for each value of a label."""
    family: Metric = kind(name, what, labels=[label])
    for labelled, value in values.items():
        family.add_metric([labelled], value)
    return family


@cache
def version() -> str:
    """Return the version of the installed distribution; "0" if it runs from its source without being installed."""
    try:
        return metadata.version("whiten")
    except metadata.PackageNotFoundError:
        return "0"


def set_up_logs(form: str) -> None:
    """Let uvicorn, asyncio and the application log in one form, and requests a line each, on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(Lines(form == "json"))
    for name, level, one in (
        ("whiten.serving", logging.INFO, handler),
        ("uvicorn.error", logging.ERROR, handler),  # it warns of each offer of an upgrade, as Java sends them
        ("asyncio", logging.ERROR, handler),
        ("whiten.access", logging.INFO, logging.StreamHandler()),
    ):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [one], False
        logger.setLevel(level)


class Lines(logging.Formatter):
    """Writes a message about the process as a line, or an object of JSON, with the type and text of its exception."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._json = as_json

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        cause = f": {type(error).__name__}: {error}" if error is not None else ""
        message, level = f"{record.getMessage()}{cause}", record.levelname.lower()
        values: dict[str, object] = getattr(record, "values", {})
        if self._json:
            return json.dumps({"time": _now(), "level": level, "message": " ".join(message.split())} | values)
        first = "" if record.levelno == logging.INFO else f"{level}: "
        more = "".join(f"; {name}: {value}" for name, value in values.items())
        return " ".join(f"{first}{message}{more}".split())


def log_request(call: Call, method: str, seconds: float, form: Literal["text", "json", "off"]) -> None:
    """Log what a request was and what it cost, never a text."""
    if form == "off" or not ACCESS.isEnabledFor(logging.INFO):
        return
    fields: dict[str, object] = {
        "time": _now(),
        "id": call.id,
        "method": method if method.isalpha() and len(method) <= 10 else "other",
        "route": call.route,
        "model": call.model,
        "status": call.status,
        "texts": call.texts,
        "tokens": call.tokens,
        "truncated": call.truncated,
        "zeros": call.zeros,
        "queue_ms": round(call.queue_seconds * 1000, 2),
        "run_ms": round(call.run_seconds * 1000, 2),
        "total_ms": round(seconds * 1000, 2),
    }
    if call.client:
        fields["client"] = call.client
    if call.code:
        fields["error"] = call.code
    if form == "json":
        line = orjson.dumps(fields).decode()
    else:
        first = f"{fields.pop('time')} {fields.pop('status')} {fields.pop('method')} {fields.pop('route')}"
        line = " ".join([first, *[f"{name}={value}" for name, value in fields.items() if value]])
    ACCESS.handle(logging.LogRecord(ACCESS.name, logging.INFO, "", 0, line, None, None))  # `info` costs 5 µs more


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
