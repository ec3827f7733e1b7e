"""whiten: whitened sentence embeddings as one ONNX graph. All public names are here; other packages are private.

`import whiten` is fast and loads none of torch, transformers, onnx or onnxruntime: each name is imported when it is
first used. Names that write bundles need `pip install 'whiten[export]'`, or `'whiten[refit]'` for `fit_bundle` and
`refit_bundle`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whiten_export.pipeline.export_model import export_bundle
    from whiten_export.pipeline.export_vectors import export_vectors
    from whiten_export.pipeline.fit import fit_bundle
    from whiten_export.pipeline.recipe import GraphChoice, Recipe, VectorRecipe, WhiteningChoice
    from whiten_export.pipeline.refit import refit_bundle
    from whiten_export.sources.choice import SourceChoice
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
        SignatureError,
        TextError,
        TooLongError,
        UnsafeModelError,
        UsageError,
        WhitenError,
    )
    from whiten_runtime.files.corpus import Corpus
    from whiten_runtime.signing.sign import sign_bundle
    from whiten_runtime.signing.verify import Signature, verify_signature
    from whiten_runtime.vector_whitener import VectorWhitener
    from whiten_serving.async_encoder import AsyncEncoder
    from whiten_serving.batcher import Batcher
    from whiten_serving.errors import DeadlineExceededError, OverloadedError
    from whiten_whitening.codes.coded import Codes
    from whiten_whitening.codes.coder import Coder
    from whiten_whitening.drift import Drift, DriftMonitor
    from whiten_whitening.estimator import Whitening
    from whiten_whitening.maps import WhiteningSpec

    __version__: str

__all__ = [
    "Agreement",
    "AsyncEncoder",
    "Batcher",
    "BundleError",
    "Coder",
    "Codes",
    "Corpus",
    "DataError",
    "DeadlineExceededError",
    "Drift",
    "DriftMonitor",
    "Encoder",
    "GraphChoice",
    "IntegrityError",
    "Manifest",
    "MissingPackageError",
    "OverloadedError",
    "ParityError",
    "ProviderError",
    "Recipe",
    "Signature",
    "SignatureError",
    "SourceChoice",
    "TextError",
    "TooLongError",
    "UnsafeModelError",
    "UsageError",
    "VectorRecipe",
    "VectorWhitener",
    "WhitenError",
    "Whitening",
    "WhiteningChoice",
    "WhiteningSpec",
    "__version__",
    "export_bundle",
    "export_vectors",
    "fit_bundle",
    "refit_bundle",
    "sign_bundle",
    "verify_signature",
]

_MODULES = {
    "whiten_export.pipeline.export_model": ("export_bundle",),
    "whiten_export.pipeline.export_vectors": ("export_vectors",),
    "whiten_export.pipeline.recipe": ("GraphChoice", "Recipe", "VectorRecipe", "WhiteningChoice"),
    "whiten_export.pipeline.fit": ("fit_bundle",),
    "whiten_export.pipeline.refit": ("refit_bundle",),
    "whiten_export.sources.choice": ("SourceChoice",),
    "whiten_runtime.bundle.manifest": ("Manifest",),
    "whiten_runtime.bundle.parity": ("Agreement",),
    "whiten_runtime.encoder": ("Encoder",),
    "whiten_runtime.files.corpus": ("Corpus",),
    "whiten_runtime.signing.sign": ("sign_bundle",),
    "whiten_runtime.signing.verify": ("Signature", "verify_signature"),
    "whiten_runtime.vector_whitener": ("VectorWhitener",),
    "whiten_serving.async_encoder": ("AsyncEncoder",),
    "whiten_serving.batcher": ("Batcher",),
    "whiten_serving.errors": ("DeadlineExceededError", "OverloadedError"),
    "whiten_whitening.codes.coded": ("Codes",),
    "whiten_whitening.codes.coder": ("Coder",),
    "whiten_whitening.drift": ("Drift", "DriftMonitor"),
    "whiten_whitening.estimator": ("Whitening",),
    "whiten_whitening.maps": ("WhiteningSpec",),
}
"""Public names by the module that defines them; names that are not listed are errors of `whiten_runtime.errors`."""

_PLACES = {name: module for module, names in _MODULES.items() for name in names}

_PUBLIC = frozenset(__all__)

if find_spec("onnx_ir") is None:  # `from whiten import *` gives what is installed
    for _name in ("export_bundle", "export_vectors", "fit_bundle", "refit_bundle"):
        __all__.remove(_name)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used.

    Raises:
        AttributeError: there is no such name.
        MissingPackageError: a package that the name needs is not installed.
    """
    if name not in _PUBLIC:
        raise AttributeError(f"module 'whiten' has no attribute '{name}'; its public names are in whiten.__all__")
    value = _version() if name == "__version__" else _imported(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


def _version() -> str:
    from importlib.metadata import version  # importing this takes as long as the rest of this module

    return version("whiten")


def _imported(name: str) -> Any:
    module = _PLACES.get(name, "whiten_runtime.errors")
    if not module.startswith("whiten_export"):
        return getattr(import_module(module), name)
    from whiten_runtime.checks import needing

    with needing("refit" if module.endswith(".refit") else "export"):
        return getattr(import_module(module), name)
