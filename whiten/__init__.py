"""whiten: whitened sentence embeddings as one ONNX graph. All public names are here; other packages are private.

`import whiten` is fast and loads none of torch, transformers, onnx or onnxruntime: each name is imported when it is
first used. Names that write bundles need the extra `export`, or `refit` for `fit_bundle` and `refit_bundle`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

_LINES = map(str.split, __spec__.loader.get_data(f"{__file__}i").decode().splitlines())
_PLACES = {words[3]: words[1] for words in _LINES if words[:1] == ["from"]}
"""Modules by the public names that they define, from the lines `from MODULE import NAME as NAME` of `__init__.pyi`."""

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

    with needing("refit" if module.endswith(".refit") else "export"):
        return getattr(import_module(module), name)
