"""whiten: whitened sentence embeddings as one ONNX graph. All public names are here; other packages are private.

`import whiten` is fast and loads none of torch, transformers, onnx or onnxruntime: each name is imported when it is
first used. Names that write bundles need the extra `export`, or `refit` for `fit_bundle` and `refit_bundle`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

_MODULES = {
    "whiten_export.export": "export_bundle",
    "whiten_export.recipe": "Recipe",
    "whiten_export.refit": "export_vectors fit_bundle refit_bundle",
    "whiten_export.bundle_files": "Export",
    "whiten_runtime.bundle.parity": "Agreement",
    "whiten_runtime.bundle.manifest": (
        "AlignmentRecord CandidateRecord ChoiceRecord CorpusRecord FileRecord IsotropyRecord Manifest "
        "ParityRecord QuantizationRecord Source TextMemory WhiteningRecord"
    ),
    "whiten_runtime.errors": (
        "BundleError ClosedError DataError IntegrityError MissingPackageError NoVectorError ParityError "
        "ProviderError TextError TooLongError UnsafeModelError UsageError WhitenError"
    ),
    "whiten_runtime.files.corpus": "Corpus",
    "whiten_runtime.inference.options": "EncodeArguments QueuedArguments",
    "whiten_runtime.inference.vectors": "Nearest",
    "whiten_runtime.encoder": "Encoder",
    "whiten_runtime.vector_whitener": "VectorWhitener",
    "whiten_runtime.reporter": "Reporter",
    "whiten_serving.batcher": "AsyncEncoder Batcher",
    "whiten_serving.requests": (
        "BatcherCounters BatcherStats DeadlineExceededError OverloadedError TooManyTokensError"
    ),
    "whiten_whitening.codes": "Coder Codes",
    "whiten_whitening.drift": "Drift DriftMonitor",
    "whiten_whitening.estimator": "Whitening",
    "whiten_whitening.maps": "WhiteningSpec",
}
"""Public names by the module that defines them, as `__init__.pyi` says to type checkers."""

_PLACES = {name: module for module, names in _MODULES.items() for name in names.split()}

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
