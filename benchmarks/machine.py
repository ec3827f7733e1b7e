"""Name the machine, the versions and the number of runs in the first line of a table.

Imports neither numpy nor onnxruntime: they would count in the benchmarks that measure memory.
"""

import platform
from importlib.metadata import PackageNotFoundError, version

from whiten_runtime.ort.processor import processor


def machine() -> str:
    """Return the processor, its instruction sets, the threads in use, and the versions of what computes."""
    found = processor()
    name = found.model or platform.machine()
    features = f" ({', '.join(found.features)})" if found.features else ""
    threads = f"{found.threads} thread{'' if found.threads == 1 else 's'}"
    return (
        f"{threads} of {name}{features}, {_onnxruntime()}, numpy {version('numpy')}, Python {platform.python_version()}"
    )


def kind(without_amx: bool = False) -> str:
    """Return the kind of processor, by what decides the speed of matrix products: "amx", "vnni", "arm-i8mm", ...

    Args:
        without_amx: whether AMX was refused, by `peers.without_amx`.
    """
    features = {*processor().features} - ({"AMX"} if without_amx else set())
    for name in ("AMX", "VNNI", "AVX-512", "AVX2"):
        if name in features:
            return name.lower()
    arm = next((name for name in ("I8MM", "DOTPROD", "NEON") if name in features), None)
    return f"arm-{arm.lower()}" if arm else platform.machine().lower()


def made_by(command: str, runs: str) -> str:
    """Return the first line of a table.

    Args:
        command: the benchmark's folder, with options that matter.
        runs: how often it ran, for example "medians of 5 interleaved rounds".
    """
    return f"Made by `python -m benchmarks.{command}`, {runs}; {machine()}."


def _onnxruntime() -> str:
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "no onnxruntime"
