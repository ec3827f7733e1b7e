"""Count and sort into buckets, for Prometheus: plain numbers, which are made into metrics when the page is asked for.

prometheus_client's own metrics take a lock and walk along all buckets for each number, and their pages tell when each
was made. Here, only one thread may count at a time.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


class Total:
    """Holds a number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, count: int = 1) -> None:
        """Count."""
        self.value += count


class Buckets:
    """Holds how many values were up to each bound.

    Args:
        bounds: upper bounds, ascending.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def tell(self, family: HistogramMetricFamily, labels: Labels) -> None:
        """Add a sample to a metric."""
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        family.add_metric(labels, list(zip(names, accumulate(self._counts), strict=True)), self._sum)


class Totals:
    """Holds totals by their labels.

    Args:
        name: name of the metric, without its beginning and end.
        what: what it counts.
        labels: names of the labels.
    """

    def __init__(self, name: str, what: str, labels: Labels = ()) -> None:
        self._about = f"whiten_{name}", what
        self._labels = labels
        self._of: dict[Labels, Total] = {}

    def of(self, *labels: str) -> Total:
        """Return the total of some labels, which is kept from then on."""
        found = self._of.get(labels)
        if found is None:
            found = self._of[labels] = Total()
        return found

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        family = CounterMetricFamily(*self._about, labels=self._labels)
        for labels, total in list(self._of.items()):
            family.add_metric(labels, total.value)
        yield family


class Histograms:
    """Holds buckets by their labels.

    Args:
        name: name of the metric, without its beginning.
        what: what it counts.
        bounds: upper bounds of the buckets, ascending.
        labels: names of the labels.
    """

    def __init__(self, name: str, what: str, bounds: Sequence[float], labels: Labels = ()) -> None:
        self._about = f"whiten_{name}", what
        self._bounds = bounds
        self._labels = labels
        self._of: dict[Labels, Buckets] = {} if labels else {(): Buckets(bounds)}

    def of(self, *labels: str) -> Buckets:
        """Return the buckets of some labels, which are kept from then on."""
        found = self._of.get(labels)
        if found is None:
            found = self._of[labels] = Buckets(self._bounds)
        return found

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        family = HistogramMetricFamily(*self._about, labels=self._labels)
        for labels, buckets in list(self._of.items()):
            buckets.tell(family, labels)
        yield family
