"""Name the machine, the versions and the number of runs in the first line of a table."""

import platform

import numpy as np
import onnxruntime

from whiten_runtime.ort.processor import processor


def machine() -> str:
    """Return the processor, its instruction sets, the threads in use, and the versions of what computes."""
    found = processor()
    name = found.model or platform.machine()
    features = f" ({', '.join(found.features)})" if found.features else ""
    threads = f"{found.threads} thread{'' if found.threads == 1 else 's'}"
    return (
        f"{threads} of {name}{features}, onnxruntime {onnxruntime.__version__}, numpy {np.__version__}, "
        f"Python {platform.python_version()}"
    )


def made_by(command: str, runs: str) -> str:
    """Return the first line of a table.

    Args:
        command: the benchmark's folder, with options that matter.
        runs: how often it ran, for example "medians of 5 interleaved rounds".
    """
    return f"Made by `python -m benchmarks.{command}`, {runs}; {machine()}."
