"""Start from a bundle: its graph up to the whitening, and the vectors of the reference that it was exported with."""

import shutil
from pathlib import Path

import msgspec
import onnx_ir as ir

from whiten_export.graph.builder import read_bundle_graph
from whiten_export.proof.gate import Expected
from whiten_runtime.bundle.bundle import changed_client_files, open_bundle
from whiten_runtime.bundle.parity import read_probes
from whiten_runtime.bundle.records import FileRecord
from whiten_runtime.hub.locating import locate_bundle
from whiten_whitening.statistics import check_takes_texts

_AGAIN = ", vectors before whitening as stored at export, whitened by numpy in float64"


class StoredBundle:
    """Reads a bundle of texts; its draft is its manifest.

    With `sha256`, only the bundle whose manifest has it is opened.
    """

    def __init__(self, path: str | Path, sha256: str | None = None) -> None:
        self._bundle = open_bundle(locate_bundle(path), sha256=sha256)
        self.draft = self._bundle.manifest
        check_takes_texts(path, self.draft)

    def graph(self) -> ir.Model:
        """Return the graph, whose head is to be replaced."""
        return read_bundle_graph(self._bundle.model)

    def expected(self) -> Expected:
        """Return the stored vectors of the reference before whitening."""
        parity = self.draft.parity
        first = parity.reference.split(_AGAIN)[0] if parity else "the reference"
        max_tokens = parity.max_tokens if parity else msgspec.UNSET
        return Expected(first + _AGAIN, read_probes(self._bundle), max_tokens=max_tokens)

    def copy(self, folder: Path, left_out: frozenset[str]) -> None:
        """Copy the files to a folder, but for some."""
        for name in self.draft.files.keys() - left_out:
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
