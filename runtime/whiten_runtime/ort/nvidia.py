"""Find which library of NVIDIA keeps a provider of onnxruntime from being loaded.

This works without onnxruntime, so that a missing library can be named.
"""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whiten_runtime.errors import from_clone
from whiten_runtime.ort.providers import NVIDIA

_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_LIBRARIES = ("libcublas", "libcuda", "libcudnn", "libcufft", "libcurand", "libnvinfer", "libnvonnxparser", "libnvrtc")

_TENSORRT = ("libnvinfer", "libnvonnxparser")


def advice(missing: str) -> str:
    if missing.startswith(_TENSORRT):
        return "pip install tensorrt"
    if missing == _DRIVER:
        return "install NVIDIA's driver, or give this container a GPU"
    return f"{from_clone('gpu,cuda')}, for CUDA and cuDNN"


def missing_for(onnxruntime: Any, provider: str) -> str | None:
    """Return a library that is missing for a provider; None for providers that are not NVIDIA's."""
    if provider not in NVIDIA:
        return None
    library = provider_library(Path(onnxruntime.__file__).parent, NVIDIA[provider])
    return missing_library(library) if library else None


def provider_library(folder: Path, name: str) -> Path | None:
    """Return the path of onnxruntime's library of a provider ("cuda", "tensorrt"), or None where there is none."""
    for file in (f"libonnxruntime_providers_{name}.so", f"onnxruntime_providers_{name}.dll"):
        if (path := folder / "capi" / file).exists():
            return path
    return None


def missing_library(library: Path, load: Callable[[str], object] = ctypes.CDLL) -> str | None:
    """Return the library that keeps a shared library from being loaded, as the system's loader names it; or None."""
    try:
        load(str(library))
    except OSError as error:
        named = str(error).partition(":")[0]
        return named if named.startswith(_LIBRARIES) else None
    return None
