"""Start from a file of precomputed embeddings: its graph returns them as they are."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from whiten_export.graph.head import OPSET, vectors_graph
from whiten_export.proof.gate import Case, Expected
from whiten_export.sources.model import Source
from whiten_runtime.bundle.manifest import FORMAT_VERSION, Manifest
from whiten_runtime.bundle.records import CorpusRecord
from whiten_runtime.bundle.records import Source as SourceRecord
from whiten_runtime.errors import DataError
from whiten_runtime.files.read_vectors import read_vectors
from whiten_runtime.reporter import Reporter
from whiten_whitening.statistics import Statistics, fit_vectors

_PROBES = 64


class VectorFile(Source):
    """Reads a file of vectors, and the statistics of all of them."""

    statistics: Statistics

    def __init__(self, file: Path, name: str, column: str | None, report: Reporter) -> None:
        self._file, self._name, self._column = file, name, column
        self.statistics = self._fitted(report)
        self.width = len(self.statistics.moments.mean)

    @cached_property
    def draft(self) -> Manifest:
        """The manifest of a graph that returns the vectors as they are."""
        (corpus,) = self.statistics.corpus
        source = SourceRecord(
            model=self._name,
            checkpoint=None,
            revision=None,
            weights_sha256=corpus.sha256,
            model_type="vectors",
            num_hidden_layers=0,
            hidden_size=self.width,
            sentence_similarity=False,
        )
        return Manifest(
            format_version=FORMAT_VERSION,
            name=self._name,
            source=source,
            input="vectors",
            layers=(),
            pooling=None,
            whitening=None,
            normalize=False,
            dimension=self.width,
            max_seq_length=0,
            pad_token_id=0,
            precision="fp32",
            opset=OPSET,
            versions={},
            parity=None,
            files={},
        )

    def graph(self, manifest: Manifest) -> ir.Model:
        """Return the graph up to the vector before whitening, which is its input."""
        return vectors_graph(self.width)

    def expected(self, manifest: Manifest, cases: Sequence[Case], report: Reporter) -> Expected:
        """Return vectors spread evenly over the file, as the vectors before whitening."""
        count = self.statistics.moments.n
        wanted = np.unique(np.linspace(0, count - 1, _PROBES).astype(np.intp))
        taken, start = [], 0
        for rows in self._read():
            inside = wanted[(wanted >= start) & (wanted < start + len(rows))]
            taken.append(rows[inside - start])
            start += len(rows)
        vectors = np.concatenate(taken).astype(np.float64)
        return Expected(f"numpy {np.__version__}, float64", [Case((), expected=vectors)])

    def _fitted(self, report: Reporter) -> Statistics:
        """Return the statistics of all vectors of the file, with the SHA-256 over them as float32."""
        digest = hashlib.sha256()

        def parts() -> Iterator[NDArray[np.float32]]:
            for rows in self._read():
                digest.update(np.ascontiguousarray(rows, "<f4").tobytes())
                yield rows

        with report.bar("vectors", None) as advance:
            statistics = fit_vectors(parts(), advance)
        if statistics is None:
            raise DataError(f"{self._file}: holds no vector; give a file with vectors in it")
        record = CorpusRecord(name=self._file.name, sha256=digest.hexdigest(), sentences=statistics.moments.n)
        return dataclasses.replace(statistics, corpus=(record,))

    def _read(self) -> Iterator[NDArray[np.float32]]:
        return read_vectors(self._file, self._column)
