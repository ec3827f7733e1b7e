"""Start from a bundle: its graph up to the whitening, and the vectors of the reference that it was exported with."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import onnx_ir as ir

from whiten_export.graph.builder import read_bundle_graph
from whiten_export.proof.gate import Case, Expected
from whiten_export.sources.model import Source
from whiten_runtime.bundle.bundle import (
    EXTERNAL_DATA_FILE,
    MODEL_FILE,
    PROBE_VECTORS_FILE,
    WHITENING_FILE,
    changed_client_files,
    open_bundle,
)
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.parity import read_probes
from whiten_runtime.bundle.records import FileRecord
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.hub.uploading import CARD_FILE
from whiten_runtime.reporter import Reporter
from whiten_whitening.statistics import check_takes_texts

_AGAIN = ", vectors before whitening as stored at export, whitened by numpy in float64"

_CHANGED = frozenset({MODEL_FILE, EXTERNAL_DATA_FILE, WHITENING_FILE, PROBE_VECTORS_FILE, CARD_FILE})


class StoredBundle(Source):
    """Reads a bundle of texts; its draft is its manifest."""

    def __init__(self, path: str | Path) -> None:
        self.name, self._bundle = path, open_bundle(locate_bundle(path))
        check_takes_texts(path, self.draft)

    @property
    def draft(self) -> Manifest:
        """The manifest of the bundle."""
        return self._bundle.manifest

    @property
    def path(self) -> Path:
        """Return the directory of the bundle."""
        return self._bundle.path

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the manifest, which names the bundle that was opened."""
        return self._bundle.sha256

    def graph(self, manifest: Manifest) -> ir.Model:
        """Return the graph, whose head is to be replaced."""
        return read_bundle_graph(self._bundle.model)

    def expected(self, manifest: Manifest, cases: Sequence[Case], report: Reporter) -> Expected:
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
