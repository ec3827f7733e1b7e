"""Inspect NVIDIA's driver, its GPUs, and the libraries that onnxruntime's CUDA provider is linked to.

This works without onnxruntime, so that a missing library can be named.
"""

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whiten_runtime.errors import from_clone
from whiten_runtime.ort.providers import NVIDIA

_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_LIBRARIES = ("libcublas", "libcuda", "libcudnn", "libcufft", "libcurand", "libnvinfer", "libnvonnxparser", "libnvrtc")

_TENSORRT = ("libnvinfer", "libnvonnxparser")
if sys.platform == "win32":
    _RUNTIMES, _CUDNN = ("cudart64_13.dll", "cudart64_12.dll"), "cudnn64_9.dll"
else:
    _RUNTIMES, _CUDNN = ("libcudart.so.13", "libcudart.so.12"), "libcudnn.so.9"


@dataclass(frozen=True)
class Gpu:
    """A GPU."""

    name: str  # the driver's name for it
    memory: int  # size of its memory in bytes
    capability: str  # compute capability, such as "9.0"


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver."""

    version: str | None  # newest CUDA version that it can run, such as "13.0"; None without a driver
    problem: str | None  # reason why it cannot be used; None if it can
    gpus: tuple[Gpu, ...] = ()  # GPUs that this process can see


def driver(load: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> Driver:
    """Query the driver's version and GPUs."""
    try:
        library = load(_DRIVER)
    except OSError as error:
        return Driver(None, f"no NVIDIA driver: {error}")
    if status := library.cuInit(0):
        return Driver(None, f"the NVIDIA driver cannot start (cuInit gave {status}); is a GPU given to this process?")
    number, count = ctypes.c_int(), ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(number))
    library.cuDeviceGetCount(ctypes.byref(count))
    gpus = tuple(_gpu(library, index) for index in range(count.value))
    return Driver(_version(number), None if gpus else "the NVIDIA driver shows this process no GPU", gpus)


def _version(number: ctypes.c_int) -> str:
    """Format CUDA's version number: 13010 is 13.1."""
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def _gpu(library: ctypes.CDLL, index: int) -> Gpu:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    capability = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(str(value.value))
    return Gpu(name.value.decode(), memory.value, ".".join(capability))


def library_versions(load: Callable[[str], Any] = ctypes.CDLL) -> dict[str, str]:
    """Return the versions of the CUDA runtime and of cuDNN, as far as they are found; few operators need cuDNN."""
    versions = {}
    for name in _RUNTIMES:
        with suppress(OSError):
            number = ctypes.c_int()
            load(name).cudaRuntimeGetVersion(ctypes.byref(number))
            versions["CUDA"] = _version(number)
            break
    with suppress(OSError):
        version = load(_CUDNN).cudnnGetVersion
        version.restype = ctypes.c_size_t
        number = version()
        versions["cuDNN"] = f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
    return versions


def advice(missing: str) -> str:
    """Return the next step for a missing library."""
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
