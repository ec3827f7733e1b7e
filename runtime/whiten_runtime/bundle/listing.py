"""Name the files of a bundle: what only other programs read, what a signature covers, and what is not of the bundle."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath

from whiten_runtime.bundle.files import sha256_of
from whiten_runtime.bundle.manifest import MANIFEST_FILE, Manifest
from whiten_runtime.bundle.records import FileRecord

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
    """Return the POSIX paths, sorted, of files that programs load or run and that are not listed."""
    return sorted(name for name in files_in(root) if is_model_file(name) and name not in listed)


def files_in(root: Path) -> list[str]:
    """Return the POSIX paths of all files below a directory, and of links to folders, which are not followed.

    The folders .git and .cache in the directory itself are left out.
    """
    found: list[str] = []
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        place = here.relative_to(root)
        if place == Path():
            folders[:] = [name for name in folders if name not in _HIDDEN]
        links = [name for name in folders if (here / name).is_symlink()]
        found += [(place / name).as_posix() for name in (*links, *files)]
    return found


SIGNATURE_FILE = "model.sig"
"""File of a bundle's signature; the manifest does not list it, since a bundle is signed after it is written."""

UNSIGNED_FILES = frozenset({"README.md"})
"""Files that no signature covers: people edit the card, on the hub too, after a bundle is signed."""

_GIT = ".git"
"""Beginning of the names of git's files and folders, such as .gitattributes, which the hub makes."""


def signed_files(manifest: Manifest) -> tuple[str, ...]:
    """Return the POSIX paths, sorted, of the files that a signature of a bundle has to cover.

    These are the manifest, and the files that it lists but README.md.
    """
    return tuple(sorted({MANIFEST_FILE, *manifest.files} - UNSIGNED_FILES))


def unlisted_files(root: Path, manifest: Manifest, signature: Path) -> tuple[str, ...]:
    """Return the POSIX paths, sorted, of files in a bundle's folder that are not the bundle's: programs may read them.

    Left out are README.md, signatures, the files of git, and the folder .cache of the hub's client.
    """
    known = {MANIFEST_FILE, SIGNATURE_FILE, *UNSIGNED_FILES, *manifest.files}
    found = {name for name in files_in(root) if name not in known and not name.startswith(_GIT)}
    return tuple(sorted(name for name in found if (root / name).absolute() != signature.absolute()))
