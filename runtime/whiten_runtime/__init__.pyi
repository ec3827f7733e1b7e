# Types of the names that `whiten_runtime` imports when they are first used.

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
