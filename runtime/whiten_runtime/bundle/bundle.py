"""Open a bundle on disk: its layout, and the checks made before any of its files is used."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath

from whiten_runtime.bundle.files import (
    opened,
    sha256_of,
    sha256_of_open,
)
from whiten_runtime.bundle.graph import is_beside, scan_graph, unwanted
from whiten_runtime.bundle.manifest import MANIFEST_FILE, Manifest, parse_manifest, read_content
from whiten_runtime.bundle.records import FileRecord
from whiten_runtime.errors import BundleError, IntegrityError, UnsafeModelError

MODEL_FILE = "onnx/model.onnx"
EXTERNAL_DATA_FILE = "onnx/model.onnx_data"
TOKENIZER_FILE = "tokenizer.json"
WHITENING_FILE = "whitening.safetensors"
PROBES_FILE = "probes.json"
PROBE_VECTORS_FILE = "probes.safetensors"


@dataclass(frozen=True)
class Bundle:
    """Represents a bundle whose manifest was read and whose files were checked."""

    path: Path  # its directory
    manifest: Manifest  # its manifest
    hashed: bool  # whether hashes are checked, and not sizes alone

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
        with opened(path) as file:
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
    return Bundle(root, manifest, verify_hashes)


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
        with opened(path) as file:
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


CLIENT_FILES = frozenset(
    {
        *("README.md", "config.json", "special_tokens_map.json", "tokenizer_config.json"),
        *("modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
    }
)
"""Files that no vector of `Encoder` depends on. Programs that save a model write them anew. A model of
sentence-transformers takes a smaller maximum length from its own file.
"""

TRANSFORMERS_JS = "transformers.js_config"
"""Key of `config.json` under which transformers.js looks up how a model's files are called."""

SEPARATE_WEIGHTS = "use_external_data_format"
"""Key under it: names of graphs whose weights are files of their own, with the number of these."""


def changed_client_files(root: Path, files: Mapping[str, FileRecord]) -> list[str]:
    """Return the names, sorted, of client files that differ from a manifest's records, or that it does not list."""
    return sorted(name for name in CLIENT_FILES if _differs(root / name, files.get(name)))


def _differs(path: Path, record: FileRecord | None) -> bool:
    if not path.is_file():
        return record is not None
    return record is None or path.stat().st_size != record.bytes or sha256_of([path]) != record.sha256


_PREFIXES = (".onnx", ".safetensors")
"""Beginnings of suffixes, such as .onnx_data and .onnx_data_1."""

_SUFFIXES = frozenset(
    {
        *(".ort", ".data", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".h5", ".hdf5", ".keras"),
        *(".pb", ".tflite", ".msgpack", ".gguf", ".ggml", ".ot", ".xml", ".mlmodel", ".mlpackage", ".engine", ".plan"),
        *(".trt", ".pdparams", ".pdmodel", ".nemo", ".mar", ".llamafile"),
        *(".py", ".pyc", ".pyo", ".pyd", ".pyz", ".so", ".dll", ".dylib"),
    }
)
"""Suffixes of weights, graphs and code of other programs."""

_HIDDEN = frozenset({".git", ".cache"})
"""Folders of git and of the hub's client, in which no program looks for a model."""


def is_model_file(name: str) -> bool:
    """Return whether programs load or run a file of this name: weights, graphs and code, whatever the case."""
    suffix = PurePosixPath(name.lower()).suffix
    return suffix.startswith(_PREFIXES) or suffix in _SUFFIXES


def stray_files(root: Path, listed: Collection[str]) -> list[str]:
    """Return the POSIX paths, sorted, of files that programs load or run and that are not listed.

    Links to folders are not followed, and the folders .git and .cache in the directory itself are left out.
    """
    names: list[str] = []
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        place = here.relative_to(root)
        if place == Path():
            folders[:] = [name for name in folders if name not in _HIDDEN]
        links = [name for name in folders if (here / name).is_symlink()]
        names += [(place / name).as_posix() for name in (*links, *files)]
    return sorted(name for name in names if is_model_file(name) and name not in listed)
