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


def made_by(command: str, runs: str) -> str:
    """Return the first line of a table: the benchmark's folder with its options, how often it ran, and the machine."""
    return f"Made by `python -m benchmarks.{command}`, {runs}; {machine()}."


def _onnxruntime() -> str:
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "no onnxruntime"
