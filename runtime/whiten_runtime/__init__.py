"""Compute sentence vectors from a bundle, with numpy, onnxruntime and tokenizers alone.

This package is private: `import whiten` has all public names. Those below lived here first, and go on working.
"""

from importlib import import_module
from typing import Any

_PLACES = {
    "Agreement": "whiten_runtime.bundle.parity",
    "Encoder": "whiten_runtime.encoder",
    "Manifest": "whiten_runtime.bundle.manifest",
    "VectorWhitener": "whiten_runtime.vector_whitener",
}

_ERRORS = (
    *("BundleError", "DataError", "IntegrityError", "MissingPackageError", "ParityError", "ProviderError"),
    *("TextError", "TooLongError", "UnsafeModelError", "UsageError", "WhitenError"),
)

__all__ = sorted((*_PLACES, *_ERRORS))


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    if name in ("encoder", "errors"):  # modules that were loaded by this one
        return import_module(f"whiten_runtime.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_PLACES.get(name, "whiten_runtime.errors")), name)
    globals()[name] = value
    return value
