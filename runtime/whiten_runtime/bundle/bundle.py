"""Open a bundle on disk: its layout, and the checks made before any of its files is used."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath

from whiten_runtime.bundle.files import (
    CLIENT_BYTES,
    GRAPH_BYTES,
    PROBE_VECTORS_BYTES,
    PROBES_BYTES,
    TOKENIZER_BYTES,
    WHITENING_BYTES,
    opened,
    sha256_of,
    sha256_of_open,
)
from whiten_runtime.bundle.graph_scan import is_beside, scan_graph
from whiten_runtime.bundle.listing import CLIENT_FILES, stray_files
from whiten_runtime.bundle.manifest import MANIFEST_FILE, Manifest, parse_manifest, read_content
from whiten_runtime.bundle.operators import unwanted
from whiten_runtime.bundle.records import FileRecord
from whiten_runtime.errors import BundleError, IntegrityError, UnsafeModelError

MODEL_FILE = "onnx/model.onnx"
EXTERNAL_DATA_FILE = "onnx/model.onnx_data"
TOKENIZER_FILE = "tokenizer.json"
WHITENING_FILE = "whitening.safetensors"
PROBES_FILE = "probes.json"
PROBE_VECTORS_FILE = "probes.safetensors"

_LIMITS = {
    MODEL_FILE: GRAPH_BYTES,
    TOKENIZER_FILE: TOKENIZER_BYTES,
    WHITENING_FILE: WHITENING_BYTES,
    PROBES_FILE: PROBES_BYTES,
    PROBE_VECTORS_FILE: PROBE_VECTORS_BYTES,
    **dict.fromkeys(CLIENT_FILES, CLIENT_BYTES),
}
"""Largest number of bytes of each file that is read whole."""


@dataclass(frozen=True)
class Bundle:
    """Represents a bundle whose manifest was read and whose files were checked."""

    path: Path  # its directory
    manifest: Manifest  # its manifest
    hashed: bool  # whether hashes are checked, and not sizes alone
    sha256: str  # SHA-256 of the `whiten.json` that was read, in hexadecimal digits

    @property
    def model(self) -> Path:
        """Return the path of the ONNX graph."""
        return self.path / MODEL_FILE

    @property
    def tokenizer(self) -> Path:
        """Return the path of the tokenizer, in the format of Hugging Face tokenizers."""
        return self.path / TOKENIZER_FILE

    @contextmanager
    def opened(self, name: str) -> Iterator[BufferedReader]:
        """Open a file that the manifest lists, and check it once more: the bundle may have been replaced since."""
        path = self.path / name
        with opened(path, _LIMITS.get(name)) as file:
            try:
                _check_record(path, file, self.manifest.files[name], self.hashed)
            except IntegrityError:
                raise IntegrityError(
                    f"{path}: replaced or altered since the bundle was opened; open it again"
                ) from None
            file.seek(0)
            yield file

    def check_weights(self) -> None:
        """Check the SHA-256 of the weights that are stored outside the graph, if there are any."""
        record = self.manifest.files.get(EXTERNAL_DATA_FILE)
        if record is not None:
            _check_file(self.path, EXTERNAL_DATA_FILE, record, True)


def open_bundle(path: str | Path, verify_hashes: bool = True, verify_weights: bool = True) -> Bundle:
    """Read the manifest of a bundle and check its files against it.

    Sizes and the safety of the graph are always checked. Files that only other programs read (`CLIENT_FILES`) must be
    there, but may have another content: those programs write them anew when they save a model.
    """
    root = Path(path)
    content = read_content(root)
    try:
        return _checked(root, content, verify_hashes, verify_weights)
    except BundleError:
        if (newer := read_content(root)) == content:
            raise
        return _checked(root, newer, verify_hashes, verify_weights)  # the bundle was replaced meanwhile


def _checked(root: Path, content: bytes, verify_hashes: bool, verify_weights: bool) -> Bundle:
    """Check the files of a bundle against the content of its manifest, as `open_bundle` does."""
    manifest = parse_manifest(content, root / MANIFEST_FILE)
    for name in (MODEL_FILE, *([TOKENIZER_FILE] if manifest.input == "text" else [])):
        if name not in manifest.files:
            raise BundleError(f"{root / MANIFEST_FILE}: does not list {name}; export the model again")
    for name, record in manifest.files.items():
        _check_file(root, name, record, verify_hashes and (verify_weights or name != EXTERNAL_DATA_FILE))
    if stray := stray_files(root, manifest.files):
        raise IntegrityError(
            f"{root / stray[0]}: not a file of this bundle, though other programs would load or run it; remove it"
        )
    _check_graph(root, manifest)
    return Bundle(root, manifest, verify_hashes, hashlib.sha256(content).hexdigest())


def file_record(path: Path) -> FileRecord:
    """Return the size and SHA-256 of a file, read in pieces of 1 MiB."""
    return FileRecord(sha256=sha256_of([path]), bytes=path.stat().st_size)


def list_files(root: Path) -> Iterable[str]:
    """Return the POSIX paths of the files below a directory, sorted, without the manifest."""
    paths = (file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file())
    return sorted(name for name in paths if name != MANIFEST_FILE)


def _check_file(root: Path, name: str, record: FileRecord, verify_hash: bool) -> None:
    path = root / name
    try:
        with opened(path, _LIMITS.get(name)) as file:
            if name not in CLIENT_FILES:
                _check_record(path, file, record, verify_hash)
    except FileNotFoundError:
        raise BundleError(
            f"{path}: missing, though {MANIFEST_FILE} lists it; the copy is incomplete: copy the bundle again"
        ) from None
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error


def _check_record(path: Path, file: BufferedReader, record: FileRecord, verify_hash: bool) -> None:
    size = os.fstat(file.fileno()).st_size
    if size != record.bytes:
        raise IntegrityError(
            f"{path}: {size} bytes, but {MANIFEST_FILE} says {record.bytes}; "
            "the copy is incomplete or altered: copy the bundle again"
        )
    if verify_hash and sha256_of_open(file) != record.sha256:
        raise IntegrityError(
            f"{path}: SHA-256 differs from {MANIFEST_FILE}; the file was altered: copy the bundle again"
        )


def _check_graph(root: Path, manifest: Manifest) -> None:
    path = root / MODEL_FILE
    scan = scan_graph(path)
    if (what := unwanted(scan, manifest.target)) is not None:
        raise UnsafeModelError(f"{path}: has {what}; use a graph written by whiten-export")
    folder = PurePosixPath(MODEL_FILE).parent
    for location in sorted(scan.external_files):
        if not is_beside(location) or (folder / location).as_posix() not in manifest.files:
            raise UnsafeModelError(
                f"{path}: its weights point to {location!r}, which is not a file of the bundle; "
                "use a graph written by whiten-export"
            )
