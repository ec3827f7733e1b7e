"""whiten: whitened sentence embeddings as one ONNX graph. All public names are here; other packages are private.

`import whiten` is fast and loads none of torch, transformers, onnx or onnxruntime: each name is imported when it is
first used. Names that write bundles need the extra `export`, or `refit` for `fit_bundle` and `refit_bundle`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

_PLACES = {
    "export_bundle": "whiten_export.pipeline.export_model",
    "export_vectors": "whiten_export.pipeline.export_vectors",
    "Recipe": "whiten_export.pipeline.recipe",
    "fit_bundle": "whiten_export.pipeline.refit_files",
    "refit_bundle": "whiten_export.pipeline.refit_files",
    "Export": "whiten_export.writing.client_files",
    "Manifest": "whiten_runtime.bundle.manifest",
    "Agreement": "whiten_runtime.bundle.parity",
    "AlignmentRecord": "whiten_runtime.bundle.records",
    "CandidateRecord": "whiten_runtime.bundle.records",
    "ChoiceRecord": "whiten_runtime.bundle.records",
    "CorpusRecord": "whiten_runtime.bundle.records",
    "FileRecord": "whiten_runtime.bundle.records",
    "IsotropyRecord": "whiten_runtime.bundle.records",
    "ParityRecord": "whiten_runtime.bundle.records",
    "QuantizationRecord": "whiten_runtime.bundle.records",
    "Source": "whiten_runtime.bundle.records",
    "WhiteningRecord": "whiten_runtime.bundle.records",
    "BundleError": "whiten_runtime.errors",
    "DataError": "whiten_runtime.errors",
    "IntegrityError": "whiten_runtime.errors",
    "MissingPackageError": "whiten_runtime.errors",
    "NoVectorError": "whiten_runtime.errors",
    "ParityError": "whiten_runtime.errors",
    "ProviderError": "whiten_runtime.errors",
    "SignatureError": "whiten_runtime.errors",
    "TextError": "whiten_runtime.errors",
    "TooLongError": "whiten_runtime.errors",
    "UnsafeModelError": "whiten_runtime.errors",
    "UsageError": "whiten_runtime.errors",
    "WhitenError": "whiten_runtime.errors",
    "Corpus": "whiten_runtime.files.corpus",
    "Nearest": "whiten_runtime.inference.vectors",
    "Encoder": "whiten_runtime.opened.encoder",
    "VectorWhitener": "whiten_runtime.opened.vector_whitener",
    "Reporter": "whiten_runtime.reporter",
    "sign_bundle": "whiten_runtime.signing",
    "Signature": "whiten_runtime.signing",
    "verify_signature": "whiten_runtime.signing",
    "AsyncEncoder": "whiten_serving.async_encoder",
    "Batcher": "whiten_serving.batcher",
    "BatcherCounters": "whiten_serving.requests",
    "BatcherStats": "whiten_serving.requests",
    "DeadlineExceededError": "whiten_serving.requests",
    "OverloadedError": "whiten_serving.requests",
    "Coder": "whiten_whitening.codes.coder",
    "Codes": "whiten_whitening.codes.io",
    "Drift": "whiten_whitening.drift",
    "DriftMonitor": "whiten_whitening.drift",
    "Whitening": "whiten_whitening.estimator",
    "WhiteningSpec": "whiten_whitening.maps",
}
"""Modules by the public names that they define, as `__init__.pyi` says to type checkers."""

_EXPORT = "whiten_export."

__all__ = sorted([*_PLACES, "__version__"])
if find_spec("onnx_ir") is None:  # `from whiten import *` leaves out the functions that need it
    __all__ = [name for name in __all__ if not (name.islower() and _PLACES.get(name, "").startswith(_EXPORT))]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used.

    Raises:
        AttributeError: there is no such name.
        MissingPackageError: a package that the name needs is not installed.
    """
    if name == "__version__":
        from importlib.metadata import version  # importing this takes as long as the rest of this module

        value: Any = version("whiten")
    elif name in _PLACES:
        value = _imported(name, _PLACES[name])
    else:
        raise AttributeError(f"module 'whiten' has no attribute '{name}'; its public names are in whiten.__all__")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


def _imported(name: str, module: str) -> Any:
    if not module.startswith(_EXPORT):
        return getattr(import_module(module), name)
    from whiten_runtime.errors import needing

    with needing("refit" if "refit" in name else "export"):
        return getattr(import_module(module), name)
