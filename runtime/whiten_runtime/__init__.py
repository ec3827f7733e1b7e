"""Runtime of whiten: sentence vectors from a bundle, with numpy, onnxruntime and tokenizers alone."""

from whiten_runtime.drift import Drift, DriftMonitor
from whiten_runtime.encoder import Encoder
from whiten_runtime.errors import (
    BundleError,
    DataError,
    IntegrityError,
    ParityError,
    ProviderError,
    TextError,
    TooLongError,
    UnsafeModelError,
    UsageError,
    WhitenError,
)
from whiten_runtime.manifest import Manifest
from whiten_runtime.parity import Agreement
from whiten_runtime.vectors import VectorWhitener

__all__ = [
    "Agreement",
    "BundleError",
    "DataError",
    "Drift",
    "DriftMonitor",
    "Encoder",
    "IntegrityError",
    "Manifest",
    "ParityError",
    "ProviderError",
    "TextError",
    "TooLongError",
    "UnsafeModelError",
    "UsageError",
    "VectorWhitener",
    "WhitenError",
]
