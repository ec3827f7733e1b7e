"""Start from a bundle: its graph up to the whitening, and the vectors of the reference that it was exported with."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import onnx_ir as ir

from whiten_export.graph.builder import read_bundle_graph, save_graph
from whiten_export.graph.head import unwhitened_value
from whiten_export.proof.gate import Expected
from whiten_runtime.bundle.bundle import (
    EXTERNAL_DATA_FILE,
    MODEL_FILE,
    changed_client_files,
    file_record,
    list_files,
    open_bundle,
)
from whiten_runtime.bundle.graph import UNWHITENED_OUTPUT
from whiten_runtime.bundle.manifest import MANIFEST_FILE, Manifest
from whiten_runtime.bundle.parity import read_probes
from whiten_runtime.bundle.records import FileRecord
from whiten_runtime.errors import UsageError
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.loading import load_bundle
from whiten_runtime.inference.options import Prompts
from whiten_runtime.ort.session import SessionOptions

_AGAIN = ", vectors before whitening as stored at export, whitened by numpy in float64"


class StoredBundle:
    """Reads a bundle of texts; its draft is its manifest."""

    def __init__(self, path: str | Path) -> None:
        self._bundle = open_bundle(locate_bundle(path))
        self.draft = self._bundle.manifest
        check_takes_texts(path, self.draft)

    def graph(self) -> ir.Model:
        """Return the graph, whose head is to be replaced."""
        return read_bundle_graph(self._bundle.model)

    def expected(self) -> Expected:
        """Return the stored vectors of the reference before whitening."""
        parity = self.draft.parity
        first = parity.reference.split(_AGAIN)[0] if parity else "the reference"
        return Expected(first + _AGAIN, read_probes(self._bundle))

    def copy(self, folder: Path, left_out: frozenset[str]) -> None:
        """Copy the files to a folder, but for some."""
        for name in self.draft.files.keys() - left_out:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with (self._bundle.path / name).open("rb") as source, (folder / name).open("wb") as copy:
                shutil.copyfileobj(source, copy)  # copyfile names the source in errors of the copy

    def changed_files(self) -> dict[str, FileRecord]:
        """Return the records of client files that another program wrote anew, as the export wrote them."""
        files = self.draft.files
        return {name: files[name] for name in changed_client_files(self._bundle.path, files) if name in files}


def load_unwhitened(path: Path, options: SessionOptions | None = None) -> Embedder:
    """Open a bundle for its vectors before whitening and normalisation.

    The graph lacks them as an output where it normalises without a whitening, and where a version before 0.5 wrote it.
    A temporary copy of the bundle, whose graph has the output, is opened then, and deleted at once.
    """
    bundle, embedder = load_bundle(path, options)
    manifest = bundle.manifest
    if manifest.whitening is None and not manifest.normalize:
        return embedder
    if not embedder.engine.gives(UNWHITENED_OUTPUT):
        embedder.close()
        with TemporaryDirectory(prefix="whiten-", ignore_cleanup_errors=True) as folder:
            _write_with_output(path, Path(folder))
            _, embedder = load_bundle(Path(folder), options)
            embedder.engine.create_sessions()  # while there are files
    return Embedder(embedder.tokenizer, embedder.engine, UNWHITENED_OUTPUT, Prompts.of(manifest))


def _write_with_output(path: Path, copy: Path) -> None:
    """Copy a bundle to a folder, and make the vectors before whitening an output of its graph."""
    source = StoredBundle(path)
    source.copy(copy, frozenset({MODEL_FILE, EXTERNAL_DATA_FILE}))
    model = source.graph()
    model.graph.outputs.append(unwhitened_value(model))
    save_graph(model, copy / MODEL_FILE)
    files = {name: file_record(copy / name) for name in list_files(copy)}
    (copy / MANIFEST_FILE).write_bytes(msgspec.structs.replace(source.draft, files=files).to_json())


def check_takes_texts(path: str | Path, manifest: Manifest) -> None:
    """Raise UsageError if a bundle takes vectors instead of texts."""
    if manifest.input != "text":
        raise UsageError(f"{path}: takes vectors, not texts; fit it anew with whiten-export --from-vectors")
