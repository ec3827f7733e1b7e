"""Hold the result of an export, and write its whitening."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from whiten_runtime.bundle.bundle import WHITENING_FILE
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningMap


@dataclass(frozen=True)
class Export:
    """Describes a bundle that was written.

    Attributes:
        path: the bundle's directory.
        manifest: manifest of the bundle.
    """

    path: Path
    manifest: Manifest

    @property
    def bytes(self) -> int:
        """Return the size of all files that the manifest lists."""
        return sum(record.bytes for record in self.manifest.files.values())


def write_whitening(stage: Path, fitted: WhiteningMap) -> None:
    """Write `whitening.safetensors`."""
    n = np.asarray([fitted.n_samples], np.int64)
    arrays = {"mean": fitted.mean, "W": fitted.weight, "eigenvalues": fitted.eigenvalues, "n": n}
    arrays |= {"covariance": fitted.covariance, "corpus_mean": fitted.corpus_mean}
    (stage / WHITENING_FILE).write_bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def warn_of_rank(fitted: WhiteningMap, report: Reporter) -> None:
    """Warn if more dimensions are kept than the covariance's rank; a rank of d - 1 is usual, and gets no warning."""
    width, kept = fitted.weight.shape
    if kept > fitted.rank and (kept < width or fitted.rank < width - 1):
        report.warn(f"only {fitted.rank} of {kept} dimensions carry something; the others come out near 0")
