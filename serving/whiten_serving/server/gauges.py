"""Show the drift of the traffic on the metrics page."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:  # they import the mathematics of whitening, which is needed where drift is measured only
    from whiten_serving.server.drift import DriftWatch
    from whiten_whitening.drift import Drift

PERIOD = 15.0
"""Seconds between two measurements of the drift."""

_MEASURES = {
    "mean_shift": "Distance of the mean of the last texts from that of the corpus, in standard deviations",
    "spectrum_ratio": "Mean variance of the last texts over the corpus's directions; 1 for the corpus itself",
    "average_cosine": "Mean cosine over all pairs of the last texts; near 0 for the corpus",
    "iso_score": "IsoScore of the last texts; 1 for the corpus itself",
    "n": "Vectors that the drift is measured on",
}


class DriftGauges(Collector):
    """Collects the drift of each model, as it was measured last."""

    def __init__(self) -> None:
        self.watches: dict[str, DriftWatch] = {}
        self._found: dict[str, Drift] = {}

    async def measure_for_ever(self) -> None:
        """Measure every `PERIOD` seconds, in another thread."""
        while True:
            await asyncio.to_thread(self.measure)
            await asyncio.sleep(PERIOD)

    def measure(self) -> None:
        """Measure the drift of every model now."""
        found = {name: watch.report() for name, watch in list(self.watches.items())}
        self._found = {name: drift for name, drift in found.items() if drift is not None}

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges; a model of which fewer than two vectors were seen has none."""
        found = self._found
        for measure, meaning in _MEASURES.items():
            name = "vectors" if measure == "n" else measure
            family = GaugeMetricFamily(f"whiten_drift_{name}", meaning, labels=["model"])
            for model, drift in found.items():
                family.add_metric([model], float(getattr(drift, measure)))
            yield family
        verdicts = GaugeMetricFamily(
            "whiten_drift_verdict", "1 for the verdict of whiten drift on the last texts", labels=["model", "verdict"]
        )
        for model, drift in found.items():
            verdicts.add_metric([model, drift.verdict], 1.0)
        yield verdicts
