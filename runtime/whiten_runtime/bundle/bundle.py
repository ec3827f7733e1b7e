"""Open a bundle on disk: its layout, and the checks made before any of its files is used."""

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath

from whiten_runtime.bundle.files import (
    GRAPH_BYTES,
    CheckedFile,
    identity_of,
    opened,
    sha256_of,
    sha256_of_open,
)
from whiten_runtime.bundle.graph import is_beside, scan_open_graph, unwanted
from whiten_runtime.bundle.manifest import MANIFEST_FILE, FileRecord, Manifest, parse_manifest, read_content
from whiten_runtime.errors import BundleError, IntegrityError, UnsafeModelError

MODEL_FILE = "onnx/model.onnx"
EXTERNAL_DATA_FILE = "onnx/model.onnx_data"
TOKENIZER_FILE = "tokenizer.json"
WHITENING_FILE = "whitening.safetensors"
PROBES_FILE = "probes.json"
PROBE_VECTORS_FILE = "probes.safetensors"

_MOST_BYTES = {
    MODEL_FILE: GRAPH_BYTES,
    TOKENIZER_FILE: 256 << 20,
    WHITENING_FILE: 8 << 30,
    PROBES_FILE: 16 << 20,
    PROBE_VECTORS_FILE: 512 << 20,
}
"""Largest sizes of files that are read into memory."""


@dataclass(frozen=True)
class Bundle:
    """Represents a bundle whose manifest was read and whose files were checked.

    Its files have the bytes that were checked: one that has others since is refused.
    """

    path: Path  # its directory
    manifest: Manifest  # its manifest
    sha256: str  # of the manifest's bytes, which hold that of every other file
    checked: Mapping[str, CheckedFile]  # the manifest and the files that were checked, not `CLIENT_FILES`, by name

    @property
    def model(self) -> Path:
        return self.path / MODEL_FILE

    @property
    def graph_files(self) -> list[CheckedFile]:
        """Return the graph, and the file of its weights if there is one."""
        return [self.checked[name] for name in (MODEL_FILE, EXTERNAL_DATA_FILE) if name in self.checked]

    @contextmanager
    def opened(self, name: str) -> Iterator[BufferedReader]:
        """Open a file that was checked.

        Raises:
            IntegrityError: it was replaced or altered since.
            BundleError: it cannot be read.
        """
        path = self.path / name
        try:
            with opened(path) as file:
                if not self.checked[name].has_bytes_of(file):
                    raise replaced(path)
                yield file
        except FileNotFoundError:
            raise replaced(path) from None
        except OSError as error:
            raise _unreadable(path, error) from error

    def read(self, name: str) -> bytes:
        with self.opened(name) as file:
            return file.read()

    def check_unchanged(self) -> None:
        """Raise IntegrityError if a file was replaced or altered since it was checked."""
        check_unchanged(self.checked.values())

    def check_weights(self) -> None:
        """Check the SHA-256 of the weights that are stored outside the graph, if there are any."""
        if EXTERNAL_DATA_FILE in self.checked:
            with self.opened(EXTERNAL_DATA_FILE) as file:
                _check_hash(self.path / EXTERNAL_DATA_FILE, file, self.manifest.files[EXTERNAL_DATA_FILE])


def replaced(path: Path) -> IntegrityError:
    return IntegrityError(
        f"{path}: replaced or altered since the bundle was opened; open it again, or restart the service"
    )


def check_unchanged(files: Iterable[CheckedFile]) -> None:
    """Raise IntegrityError for a file that has other bytes than those that were checked, or is gone."""
    for file in files:
        if not file.is_unchanged():
            raise replaced(file.path)


def open_bundle(
    path: str | Path, verify_hashes: bool = True, verify_weights: bool = True, sha256: str | None = None
) -> Bundle:
    """Read the manifest of a bundle and check its files against it.

    Sizes and the safety of the graph are always checked. Files that only other programs read (`CLIENT_FILES`) must be
    there, but may have another content: those programs write them anew when they save a model. A bundle that is
    replaced meanwhile is opened once more. With `sha256`, only the bundle whose manifest has it is opened.
    """
    root = Path(path)
    content = read_content(root)
    try:
        return _checked(root, content, verify_hashes, verify_weights, sha256)
    except BundleError:
        if (newer := read_content(root)) == content:
            raise
        return _checked(root, newer, verify_hashes, verify_weights, sha256)


def _checked(root: Path, content: bytes, verify_hashes: bool, verify_weights: bool, wanted: str | None) -> Bundle:
    """Check the files of a bundle against the content of its manifest, as `open_bundle` does."""
    digest = hashlib.sha256(content).hexdigest()
    if wanted is not None and wanted != digest:
        raise IntegrityError(
            f"{root}: is another bundle than the one that was opened before (the SHA-256 of {MANIFEST_FILE} is "
            f"{digest[:16]}, not {wanted[:16]}): put that one back, or open this one anew"
        )
    manifest = parse_manifest(content, root / MANIFEST_FILE)
    for name in (MODEL_FILE, *([TOKENIZER_FILE] if manifest.input == "text" else [])):
        if name not in manifest.files:
            raise BundleError(f"{root / MANIFEST_FILE}: does not list {name}; export the model again")
    checked = {MANIFEST_FILE: _checked_manifest(root / MANIFEST_FILE, digest)}
    for name, record in manifest.files.items():
        verify = verify_hashes and (verify_weights or name != EXTERNAL_DATA_FILE)
        file = _check_file(root / name, name, record, verify)
        if name not in CLIENT_FILES:
            checked[name] = file
    if stray := stray_files(root, manifest.files):
        raise IntegrityError(
            f"{root / stray[0]}: not a file of this bundle, though other programs would load or run it; remove it"
        )
    bundle = Bundle(root, manifest, digest, checked)
    _check_graph(bundle)
    if read_content(root) != content:  # without hashes, the files may be those of another bundle
        raise replaced(root / MANIFEST_FILE)
    return bundle


def file_record(path: Path) -> FileRecord:
    """Return the size and SHA-256 of a file."""
    return FileRecord(sha256=sha256_of([path]), bytes=path.stat().st_size)


def list_files(root: Path) -> Iterable[str]:
    """Return the POSIX paths of the files below a directory, sorted, without the manifest."""
    paths = (file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file())
    return sorted(name for name in paths if name != MANIFEST_FILE)


def _check_file(path: Path, name: str, record: FileRecord, verify_hash: bool) -> CheckedFile:
    try:
        with opened(path, _MOST_BYTES.get(name)) as file:
            identity = identity_of(os.fstat(file.fileno()))  # before it is read: a file that is written then is another
            checked = CheckedFile(path, identity, record.sha256)
            if name not in CLIENT_FILES:
                _check_size(path, checked.bytes, record)
                if verify_hash:
                    _check_hash(path, file, record)
            return checked
    except FileNotFoundError:
        raise BundleError(
            f"{path}: missing, though {MANIFEST_FILE} lists it; the copy is incomplete: {again(path)}"
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from error


def _checked_manifest(path: Path, digest: str) -> CheckedFile:
    try:
        return CheckedFile.now(path, digest)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> BundleError:
    return BundleError(f"{path}: cannot be read ({error.strerror}); check its permissions")


def _check_size(path: Path, size: int, record: FileRecord) -> None:
    if size != record.bytes:
        raise IntegrityError(
            f"{path}: {size} bytes, but {MANIFEST_FILE} says {record.bytes}; the copy is incomplete or altered: "
            f"{again(path)}"
        )


def _check_hash(path: Path, file: BufferedReader, record: FileRecord) -> None:
    if sha256_of_open(file) != record.sha256:
        raise IntegrityError(f"{path}: SHA-256 differs from {MANIFEST_FILE}; the file was altered: {again(path)}")


def again(path: Path) -> str:
    """Say how to get a damaged file of a bundle anew: by fetching it where it is in the cache of the hub."""
    in_cache = any(folder.name == "snapshots" and folder.parent.name.startswith("models--") for folder in path.parents)
    if in_cache:
        return f"delete {path.resolve()}, and open the bundle by its name, which fetches it again"
    return "copy the bundle again"


def _check_graph(bundle: Bundle) -> None:
    path, manifest = bundle.model, bundle.manifest
    with bundle.opened(MODEL_FILE) as file:
        scan = scan_open_graph(path, file)
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


_OWN = frozenset({MODEL_FILE, EXTERNAL_DATA_FILE, WHITENING_FILE, PROBE_VECTORS_FILE})
"""Graphs and weights that bundles have."""

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
    """Return the POSIX paths, sorted, of files that programs load or run, but for those of a bundle that are listed.

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
    return sorted(name for name in names if is_model_file(name) and not (name in _OWN and name in listed))
