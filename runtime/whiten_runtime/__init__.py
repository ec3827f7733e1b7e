"""Runtime of whiten: embed texts with a bundle, using only numpy, onnxruntime and tokenizers.

This package is private except for the names below, which keep working; `import whiten` has all public names.
"""

import importlib
from typing import Any

from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.parity import Agreement
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import (
    BundleError,
    DataError,
    IntegrityError,
    MissingPackageError,
    ParityError,
    ProviderError,
    TextError,
    TooLongError,
    UnsafeModelError,
    UsageError,
    WhitenError,
)
from whiten_runtime.vector_whitener import VectorWhitener

__all__ = [
    "Agreement",
    "BundleError",
    "DataError",
    "Drift",
    "DriftMonitor",
    "Encoder",
    "IntegrityError",
    "Manifest",
    "MissingPackageError",
    "ParityError",
    "ProviderError",
    "TextError",
    "TooLongError",
    "UnsafeModelError",
    "UsageError",
    "VectorWhitener",
    "WhitenError",
]

_MOVED = {"Drift": "whiten_whitening.drift", "DriftMonitor": "whiten_whitening.drift"}


def __getattr__(name: str) -> Any:
    """Import names that were moved from here to a package above this one."""
    if name in _MOVED:
        return getattr(importlib.import_module(_MOVED[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
