"""Whiten precomputed embeddings, such as those of an API, with a bundle: `VectorWhitener`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.graph import OUTPUT, VECTORS_INPUT
from whiten_runtime.bundle.manifest import VectorPrecision
from whiten_runtime.bundle.parity import Probes
from whiten_runtime.errors import BundleError, UsageError, check_flags
from whiten_runtime.hub import locate_bundle
from whiten_runtime.inference.embedder import progress_bar
from whiten_runtime.inference.engine import ForkSafeSession, GraphFile
from whiten_runtime.inference.vectors import check_finite, read_moments, rows_of
from whiten_runtime.opened_bundle import OpenedBundle, Opening, encode_options
from whiten_runtime.ort.session import Provider, SessionOptions, check_precision, providers_for

_ROWS_PER_BLOCK = 4096


class VectorWhitener(OpenedBundle):
    """Whitens vectors with a bundle that `whiten-export --from-vectors` wrote. Thread-safe, usable in forked children.

    Args:
        path: the bundle's directory, or a repository of the model hub, as for `Encoder`.
        providers: onnxruntime execution providers, all of which must be active; None for WHITEN_DEVICE, else the CPU.
        threads: threads per call; None for WHITEN_THREADS, else all the CPUs this process may use.
        device: "cpu", "cuda", "cuda:N" or "tensorrt", in place of `providers`.
        verify_hashes: compare each file's SHA-256 with the manifest before using it.
        verify: prove now, with the bundle's probes, that this machine computes what the reference computed at export.
        spinning: let threads spin while one operator waits for the next. Threads never spin between calls.
        revision: branch, tag or commit of the repository, as for `Encoder`.

    Raises:
        BundleError: not a bundle, or one that takes texts, or incomplete, altered or unsafe.
        ParityError: `verify` is true, and the probes' vectors are not the reference's.
        ProviderError: a provider is not available or not active.
        UsageError: an option cannot be used as given, or the hub has no such repository or revision.
        WhitenError: the hub cannot be reached, or refuses.
    """

    def __init__(
        self,
        path: str | Path,
        providers: Sequence[Provider] | None = None,
        threads: int | None = None,
        *,
        device: str | None = None,
        verify_hashes: bool = True,
        verify: bool = False,
        spinning: bool = True,
        revision: str | None = None,
    ) -> None:
        check_flags(verify_hashes=verify_hashes, verify=verify)
        options = SessionOptions(providers_for(providers, device), threads, spinning)
        self._open(Opening(locate_bundle(path, revision).absolute(), options, verify_hashes, verify))

    def _open(self, opening: Opening) -> None:
        path = opening.path
        self._bundle = open_bundle(path, opening.verify_hashes, sha256=opening.sha256)
        self._opening = replace(opening, sha256=self._bundle.sha256)
        if self.manifest.input != "vectors":
            raise BundleError(f"{path}: takes texts, not vectors; open it with whiten.Encoder")
        check_precision(path, self.manifest.precision, opening.options.providers)
        self._moments = read_moments(self._bundle)
        graph = GraphFile(self._bundle.model, opening.options, self._bundle.graph_files)
        self._session = ForkSafeSession(graph.create_session)
        session = self._session.get()
        self.providers: list[str] = session.get_providers()
        shapes = [value.shape for value in (*session.get_inputs(), *session.get_outputs())]
        if [shape[1:] for shape in shapes] != [[self.width], [self.dimension]]:
            raise BundleError(f"{self._bundle.model}: has shapes {shapes}, not those of its manifest; export it again")
        self._bundle.check_unchanged()
        if opening.verify:
            self._prove()

    def transform(
        self,
        vectors: ArrayLike,
        *,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        precision: VectorPrecision = "float32",
        ranges: ArrayLike | None = None,
    ) -> NDArray[Any]:
        """Whiten vectors: y = (x - mean) W, then divided by its norm if the manifest says so.

        Args:
            vectors: shape [n, d], or [d] for a single one, or an empty list; taken as float32. Arrays of int8, uint8
                and bool are refused as codes; `astype("float32")` says that their numbers are coordinates.
            batch_size: maximum number of vectors per batch; None for some thousands.
            show_progress_bar: draw a bar on stderr.
            normalize_embeddings: divide each vector by its L2 norm (after `truncate_dim`).
            truncate_dim: keep only the first coordinates, as in `Encoder.encode`.
            precision: precision of the numbers, as in `Encoder.encode`.
            ranges: ranges of int8 and uint8, as in `Encoder.encode`.

        Returns:
            float32 [n, k], or [k]; with another `precision`, as in `Encoder.encode`.

        Raises:
            UsageError: the vectors have another number of dimensions or the type of codes, or an option cannot be used
                as given.
            TextError: they are not numbers, or not finite; the message has the first index.
            BundleError: a result is not finite, such as that of numbers near the largest; the message has its index.
        """
        self._session.check_open()
        options = encode_options(
            self,
            batch_size=batch_size,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            precision=precision,
            ranges=ranges,
        )
        rows = rows_of("vectors", vectors)
        if rows.shape == (0,):  # of an empty list
            rows = rows.reshape(0, self.width)
        if rows.ndim not in (1, 2) or rows.shape[-1] != self.width:
            raise UsageError(f"vectors have shape {rows.shape}; wanted [n, {self.width}] or [{self.width}]")
        table = np.atleast_2d(rows)
        check_finite("vectors", table)
        with progress_bar(len(table), show_progress_bar, "vector") as advance:
            result = options.finish(self._run(table, options.batch_size or _ROWS_PER_BLOCK, advance), "vectors")
        return result[0] if rows.ndim == 1 else result

    def _probed(self, probes: Probes) -> tuple[Callable[[Any], NDArray[np.float32]], Any]:
        return self.transform, probes.unwhitened

    @property
    def width(self) -> int:
        """Return the number of coordinates of a vector before whitening, d."""
        return self.manifest.source.hidden_size

    def close(self) -> None:
        """Free the graph. The whitener cannot be used afterwards."""
        self._session.close()

    def _run(self, table: NDArray[np.float32], step: int, advance: Callable[[int], object]) -> NDArray[np.float32]:
        result = np.empty((len(table), self.dimension), np.float32)
        for start in range(0, len(table), step):
            part = np.ascontiguousarray(table[start : start + step])
            (result[start : start + len(part)],) = self._session.run([OUTPUT], {VECTORS_INPUT: part})
            advance(len(part))
        return result
