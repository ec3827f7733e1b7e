"""whiten: whitened sentence embeddings as one ONNX graph. All public names are here; other packages are private.

`import whiten` is fast and loads none of torch, transformers, onnx or onnxruntime: each name is imported when it is
first used. Names that write bundles need `pip install 'whiten[export]'`, or `'whiten[refit]'` for `fit_bundle` and
`refit_bundle`.
"""

from importlib import import_module
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
        TextError,
        TooLongError,
        UnsafeModelError,
        UsageError,
        WhitenError,
    )
    from whiten_runtime.files.corpus import Corpus
    from whiten_runtime.vector_whitener import VectorWhitener
    from whiten_whitening.codes.coded import Codes
    from whiten_whitening.codes.coder import Coder
    from whiten_whitening.drift import Drift, DriftMonitor
    from whiten_whitening.estimator import Whitening
    from whiten_whitening.maps import WhiteningSpec

    __version__: str

__all__ = [
    "Agreement",
    "BundleError",
    "Coder",
    "Codes",
    "Corpus",
    "DataError",
    "Drift",
    "DriftMonitor",
    "Encoder",
    "GraphChoice",
    "IntegrityError",
    "Manifest",
    "MissingPackageError",
    "ParityError",
    "ProviderError",
    "Recipe",
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
    "whiten_runtime.vector_whitener": ("VectorWhitener",),
    "whiten_whitening.codes.coded": ("Codes",),
    "whiten_whitening.codes.coder": ("Coder",),
    "whiten_whitening.drift": ("Drift", "DriftMonitor"),
    "whiten_whitening.estimator": ("Whitening",),
    "whiten_whitening.maps": ("WhiteningSpec",),
}
"""Public names by the module that defines them; names that are not listed are errors of `whiten_runtime.errors`."""

_PLACES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used.

    Raises:
        AttributeError: there is no such name.
        MissingPackageError: a package that the name needs is not installed.
    """
    if name not in __all__:
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
