"""Start from vectors that are stored: those of a bundle, whose whitening is replaced, or a file of embeddings."""

import dataclasses
import hashlib
import shutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from whiten_export.graph.build import read_graph
from whiten_export.graph.ends import OPSET, vectors_graph
from whiten_export.proof.gate import Case, Expected
from whiten_runtime.bundle.bundle import (
    EXTERNAL_DATA_FILE,
    MODEL_FILE,
    PROBE_VECTORS_FILE,
    WHITENING_FILE,
    changed_client_files,
    open_bundle,
)
from whiten_runtime.bundle.manifest import FORMAT_VERSION, Manifest
from whiten_runtime.bundle.parity import read_probes
from whiten_runtime.bundle.records import CorpusRecord, FileRecord
from whiten_runtime.bundle.records import Source as SourceRecord
from whiten_runtime.errors import DataError
from whiten_runtime.files.read_vectors import read_vectors
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.hub.uploading import CARD_FILE
from whiten_runtime.reporter import Reporter
from whiten_whitening.statistics import Statistics, check_takes_texts, fit_vectors

_AGAIN = ", vectors before whitening as stored at export, whitened by numpy in float64"

_CHANGED = frozenset({MODEL_FILE, EXTERNAL_DATA_FILE, WHITENING_FILE, PROBE_VECTORS_FILE, CARD_FILE})


class StoredBundle:
    """Reads a bundle of texts; its draft is its manifest."""

    def __init__(self, path: str | Path) -> None:
        self.name, self._bundle = path, open_bundle(locate_bundle(path))
        check_takes_texts(path, self.draft)

    @property
    def draft(self) -> Manifest:
        return self._bundle.manifest

    @property
    def path(self) -> Path:
        return self._bundle.path

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the manifest, which names the bundle that was opened."""
        return self._bundle.sha256

    def graph(self) -> ir.Model:
        """Return the graph, whose head is to be replaced."""
        return read_graph(self._bundle.model)

    def expected(self) -> Expected:
        """Return the stored vectors of the reference before whitening."""
        parity = self.draft.parity
        first = parity.reference.split(_AGAIN)[0] if parity else "the reference"
        max_tokens = parity.max_tokens if parity else msgspec.UNSET
        probes = read_probes(self._bundle)
        stored = [Case((), expected=probes.unwhitened, texts=probes.texts)]
        if probes.long is not None:
            stored.append(Case((), expected=probes.long.unwhitened, texts=probes.long.texts, long=True))
        return Expected(first + _AGAIN, stored, max_tokens=max_tokens)

    def copy_files(self, folder: Path) -> None:
        """Copy the files to a folder, but for those that another whitening changes."""
        for name in self.draft.files.keys() - _CHANGED:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with (self._bundle.path / name).open("rb") as source, (folder / name).open("wb") as copy:
                shutil.copyfileobj(source, copy)  # copyfile names the source in errors of the copy

    def check_unchanged(self) -> None:
        """Raise IntegrityError if the bundle was replaced since; its weights are read while a graph is written."""
        self._bundle.check_unchanged()

    def changed_files(self) -> dict[str, FileRecord]:
        """Return the records of client files that another program wrote anew, as the export wrote them."""
        files = self.draft.files
        return {name: files[name] for name in changed_client_files(self._bundle.path, files) if name in files}


_PROBES = 64


class VectorFile:
    """Reads a file of vectors, and the statistics of all of them."""

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

    def graph(self) -> ir.Model:
        """Return the graph up to the vector before whitening, which is its input."""
        return vectors_graph(self.width)

    def expected(self) -> Expected:
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
