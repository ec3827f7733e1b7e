"""Find files in a bundle's folder that its manifest does not list, and that programs would load or run."""

import os
from collections.abc import Collection
from pathlib import Path, PurePosixPath

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
