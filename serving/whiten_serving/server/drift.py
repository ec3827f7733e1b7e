"""Measure the drift of what a model embeds: how far the texts are from its whitening's corpus."""

import copy
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import IntegrityError, UsageError
from whiten_runtime.inference.token_runner import TokenRunner
from whiten_whitening.drift import Drift, DriftMonitor

WINDOW = 5000
"""Vectors after which a window of the traffic is complete. The last complete one and the present one are reported."""


class WatchedRunner(TokenRunner):
    """Runs batches, and shows their vectors to a function.

    Args:
        engine: engine of a bundle.
        watch: function that gets the vectors of each batch, float32 [n, k], in the thread that computed it.
    """

    _watch: Callable[[NDArray[np.float32]], object] | None = None

    def __init__(self, engine: Any, watch: Callable[[NDArray[np.float32]], object]) -> None:
        super().__init__(engine)  # runs a batch, which is nobody's
        self._watch = watch

    def run(self, ids: Sequence[Sequence[int]], prompt_tokens: int = 0, *, alone: bool = False) -> NDArray[np.float32]:
        """Return the vectors of one batch, as `TokenRunner.run`."""
        vectors = super().run(ids, prompt_tokens, alone=alone)
        if self._watch is not None:
            self._watch(vectors)
        return vectors


class WatchedEncoder(Encoder):
    """Is an encoder whose `token_runner` shows all vectors to a `DriftWatch`."""

    _drift: "DriftWatch | None" = None

    def watch_drift(self) -> "DriftWatch":
        """Measure the drift of all vectors from now on.

        Raises:
            BundleError: the bundle has no whitening, or was replaced since it was opened.
            UsageError: its vectors do not tell their distance from the mean: they are normalised, or int8.
        """
        self._drift = DriftWatch(DriftMonitor(self.path))
        if self._drift.monitor.manifest != self.manifest:
            raise IntegrityError(f"{self.path}: was replaced while it was opened; open it again")
        return self._drift

    def token_runner(self) -> TokenRunner:
        """Return what computes batches that the caller plans, as `Encoder.token_runner`."""
        self._engine.check_open()
        return super().token_runner() if self._drift is None else WatchedRunner(self._engine, self._drift.add)


class DriftWatch:
    """Measures the drift over the last vectors of one model. Safe to use from several threads.

    Args:
        monitor: monitor of the model's bundle, without vectors.

    Attributes:
        monitor: the monitor of the present window.

    Raises:
        UsageError: the bundle's vectors do not tell their distance from the mean.
    """

    def __init__(self, monitor: DriftMonitor) -> None:
        monitor.update(np.zeros((1, monitor.manifest.dimension), np.float32))  # refuses bundles that it cannot measure
        monitor.reset()
        self.monitor = monitor
        self._complete = copy.copy(monitor)
        self._seen = 0
        self._lock = Lock()

    def add(self, vectors: NDArray[np.float32]) -> None:
        """Add the vectors of a batch; those that are not finite, and rows of equal length, are left out."""
        with self._lock:
            try:
                self.monitor.update(vectors)
            except UsageError:
                return
            self._seen += len(vectors)
            if self._seen >= WINDOW:
                self._complete = copy.copy(self.monitor)
                self.monitor.reset()
                self._seen = 0

    def report(self) -> Drift | None:
        """Return the drift of the last `WINDOW` to 2 `WINDOW` vectors; None for fewer than two."""
        with self._lock:
            both = copy.copy(self._complete).merge(self.monitor)
        try:
            return both.report()
        except UsageError:
            return None
