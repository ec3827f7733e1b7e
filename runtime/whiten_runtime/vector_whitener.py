"""`VectorWhitener`: the whitening of vectors that come from elsewhere, such as an API."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.parity import Agreement, compare
from whiten_runtime.bundle.probes import read_probes
from whiten_runtime.errors import BundleError, TextError, UsageError
from whiten_runtime.inference.engine import OUTPUT
from whiten_runtime.ort.providers import Provider, providers_for
from whiten_runtime.ort.session import ForkSafeSession, SessionOptions, create_session

VECTORS_INPUT = "vectors"

_ROWS_AT_ONCE = 4096


class VectorWhitener:
    """Whitens vectors with a bundle that `whiten-export --from-vectors` wrote. Thread-safe, usable in forked children.

    Args:
        path: the bundle's directory.
        providers: onnxruntime execution providers, all of which must be active; None for the CPU.
        threads: threads per call; None for WHITEN_THREADS, else all the CPUs this process may use.

    Raises:
        BundleError: not a bundle, or one that takes texts, or incomplete, altered or unsafe.
        ProviderError: a provider is not available or not active.
    """

    def __init__(
        self, path: str | Path, providers: Sequence[Provider] | None = None, threads: int | None = None
    ) -> None:
        options = SessionOptions(providers_for(providers), threads)
        path = Path(path).absolute()
        self._arguments = (path, providers, threads)
        self._bundle = open_bundle(path)
        if self.manifest.input != "vectors":
            raise BundleError(f"{path}: takes texts, not vectors; open it with whiten_runtime.Encoder")
        self._session = ForkSafeSession(lambda: create_session(self._bundle.model, options))
        self.providers: list[str] = self._session.get().get_providers()
        shapes = [value.shape for value in (*self._session.get().get_inputs(), *self._session.get().get_outputs())]
        if [shape[1:] for shape in shapes] != [[self.width], [self.dimension]]:
            raise BundleError(f"{self._bundle.model}: has shapes {shapes}, not those of its manifest; export it again")

    def transform(self, vectors: ArrayLike) -> NDArray[np.float32]:
        """Whiten vectors: y = (x - mean) W, then divided by its norm if the bundle says so.

        Args:
            vectors: shape [n, d], or [d] for a single one; taken as float32.

        Returns:
            float32 [n, k], or [k].

        Raises:
            UsageError: the vectors have another number of dimensions.
            TextError: they are not numbers, or not finite; the message has the first index.
        """
        try:
            with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
                rows = np.asarray(vectors, np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise TextError(f"vectors are not numbers in rows of equal length ({error})") from None
        if rows.ndim not in (1, 2) or rows.shape[-1] != self.width:
            raise UsageError(f"vectors have shape {rows.shape}; wanted [n, {self.width}] or [{self.width}]")
        table = np.atleast_2d(rows)
        finite = np.isfinite(table).all(axis=1)
        if not finite.all():
            raise TextError(f"vectors[{int(finite.argmin())}] is not finite; leave it out")
        result = np.empty((len(table), self.dimension), np.float32)
        for start in range(0, len(table), _ROWS_AT_ONCE):
            part = np.ascontiguousarray(table[start : start + _ROWS_AT_ONCE])
            result[start : start + len(part)] = self._session.run([OUTPUT], {VECTORS_INPUT: part})[0]
        return result[0] if rows.ndim == 1 else result

    def verify(self) -> Agreement:
        """Whiten the bundle's probes, alone and together, and compare them with what numpy gave in float64.

        Raises:
            BundleError: the probes are missing or damaged.
        """
        probes = read_probes(self._bundle)
        alone = np.stack([self.transform(row) for row in probes.unwhitened])
        both = np.concatenate([self.transform(probes.unwhitened), alone])
        return compare(both, np.tile(probes.embeddings, (2, 1)))

    @property
    def manifest(self) -> Manifest:
        """Everything known about the bundle."""
        return self._bundle.manifest

    @property
    def width(self) -> int:
        """Coordinates of a vector that is whitened, d."""
        return self.manifest.source.hidden_size

    @property
    def dimension(self) -> int:
        """Coordinates of a whitened vector, k."""
        return self.manifest.dimension

    def close(self) -> None:
        """Free the graph. It cannot be used any more."""
        self._session.close()

    def __enter__(self) -> "VectorWhitener":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return VectorWhitener, self._arguments
