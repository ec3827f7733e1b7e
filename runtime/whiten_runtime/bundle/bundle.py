"""Open a bundle on disk: its layout, and the checks made before any of its files is used."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from whiten_runtime.bundle.client_files import CLIENT_FILES
from whiten_runtime.bundle.graph_scan import is_beside, scan_graph
from whiten_runtime.bundle.hashing import sha256_of
from whiten_runtime.bundle.manifest import MANIFEST_FILE, FileRecord, Manifest, read_manifest
from whiten_runtime.errors import BundleError, IntegrityError, UnsafeModelError

MODEL_FILE = "onnx/model.onnx"
EXTERNAL_DATA_FILE = "onnx/model.onnx_data"
TOKENIZER_FILE = "tokenizer.json"
WHITENING_FILE = "whitening.safetensors"
PROBES_FILE = "probes.json"
PROBE_VECTORS_FILE = "probes.safetensors"

MODEL_SUFFIXES = frozenset({".onnx", ".onnx_data", ".safetensors"})

FUSED_OPERATORS = frozenset(
    {
        *("Attention", "MultiHeadAttention", "GroupQueryAttention", "RotaryEmbedding", "FusedMatMul"),
        *("BiasGelu", "FastGelu", "Gelu", "QuickGelu"),
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization"),
    }
)
"""Operators of onnxruntime, besides those of the ONNX standard, that a graph for CUDA may use."""

_CONTRIB = "com.microsoft"


@dataclass(frozen=True)
class Bundle:
    """Represents a bundle whose manifest was read and whose files were checked."""

    path: Path
    manifest: Manifest

    @property
    def model(self) -> Path:
        """Return the path of the ONNX graph."""
        return self.path / MODEL_FILE

    @property
    def tokenizer(self) -> Path:
        """Return the path of the tokenizer, in the format of Hugging Face tokenizers."""
        return self.path / TOKENIZER_FILE

    def check_weights(self) -> None:
        """Check the SHA-256 of the weights that are stored outside the graph, if there are any.

        Raises:
            IntegrityError: the hash differs from that in the manifest.
        """
        record = self.manifest.files.get(EXTERNAL_DATA_FILE)
        if record is not None:
            _check_file(self.path, EXTERNAL_DATA_FILE, record, True)


def open_bundle(path: str | Path, verify_hashes: bool = True, verify_weights: bool = True) -> Bundle:
    """Read the manifest of a bundle and check its files against it.

    Sizes and the safety of the graph are always checked. Files that only other programs read (`CLIENT_FILES`) must be
    there, but may have another content: those programs write them anew when they save a model.

    Args:
        path: the bundle's directory.
        verify_hashes: check the SHA-256 of every file.
        verify_weights: check the SHA-256 of the weights too; if False, the caller calls `Bundle.check_weights` later.

    Raises:
        BundleError: not a bundle, or a file of it is missing.
        IntegrityError: a file differs from the manifest, or a model file is not listed in it.
        UnsafeModelError: the graph uses an operator outside the ONNX standard (other than `FUSED_OPERATORS` for CUDA),
            a model-local function, or weights outside the bundle.
    """
    root = Path(path)
    manifest = read_manifest(root)
    for name in (MODEL_FILE, *([TOKENIZER_FILE] if manifest.input == "text" else [])):
        if name not in manifest.files:
            raise BundleError(f"{root / MANIFEST_FILE}: does not list {name}; export the model again")
    for name, record in manifest.files.items():
        _check_file(root, name, record, verify_hashes and (verify_weights or name != EXTERNAL_DATA_FILE))
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if path.suffix in MODEL_SUFFIXES and name not in manifest.files:
            raise IntegrityError(
                f"{path}: not a file of this bundle, though other programs would take it for one; remove it"
            )
    _check_graph(root, manifest)
    return Bundle(root, manifest)


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
        size = path.stat().st_size
        if not path.is_file():
            raise BundleError(f"{path}: listed in {MANIFEST_FILE} but not a file; export the model again")
        if name in CLIENT_FILES:
            return
        if size != record.bytes:
            raise IntegrityError(
                f"{path}: {size} bytes, but {MANIFEST_FILE} says {record.bytes}; "
                "the copy is incomplete or altered: copy the bundle again"
            )
        if verify_hash and sha256_of([path]) != record.sha256:
            raise IntegrityError(
                f"{path}: SHA-256 differs from {MANIFEST_FILE}; the file was altered: copy the bundle again"
            )
    except FileNotFoundError:
        raise BundleError(
            f"{path}: missing, though {MANIFEST_FILE} lists it; the copy is incomplete: copy the bundle again"
        ) from None
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error


def _check_graph(root: Path, manifest: Manifest) -> None:
    path = root / MODEL_FILE
    scan = scan_graph(path)
    allowed = {(_CONTRIB, name) for name in FUSED_OPERATORS} if manifest.target == "cuda" else set()
    foreign = sorted(f"{domain}::{name}" for domain, name in scan.operators - allowed if domain)
    if foreign:
        raise UnsafeModelError(
            f"{path}: operator {foreign[0]} is outside the ONNX standard, which is all a bundle for {manifest.target} "
            f"may use{' besides fused ones' if allowed else ''}; use a graph written by whiten-export"
        )
    if scan.functions:
        raise UnsafeModelError(
            f"{path}: holds {scan.functions} model-local function(s), which a bundle may not; "
            "use a graph written by whiten-export"
        )
    folder = PurePosixPath(MODEL_FILE).parent
    for location in sorted(scan.external_files):
        if not is_beside(location) or (folder / location).as_posix() not in manifest.files:
            raise UnsafeModelError(
                f"{path}: its weights point to {location!r}, which is not a file of the bundle; "
                "use a graph written by whiten-export"
            )
