"""Find the files that a network's weights are loaded from, as transformers, peft and sentence-transformers choose them.

A folder may hold others beside them, such as weights of another precision, an older copy, or half a download.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from whiten_export.sources.describe.settings import read_settings
from whiten_runtime.bundle.graph import is_beside
from whiten_runtime.errors import UsageError, WhitenError

NETWORK_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Names of a network's whole weights, in the order in which transformers looks for them; an index of parts follows."""

ADAPTER_CONFIG = "adapter_config.json"

ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""Names of an adapter's weights, in the order in which peft looks for them."""

INDEX = ".index.json"
"""Suffix of the file that says in which parts weights are stored, after the name of whole weights."""


def network_weights(folder: Path, config: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the weight files of a network, in the order of their names; none without any.

    Args:
        folder: folder of the network.
        config: content of its `config.json`.

    Raises:
        UsageError: a part that an index names is not there.
        WhitenError: an index cannot be read, or leads out of the folder.
    """
    other = config.get("transformers_weights")  # a name in place of the usual ones
    candidates = [name for whole in NETWORK_WEIGHTS for name in (whole, whole + INDEX)] if other is None else [other]
    for name in candidates:
        if (path := _beside(folder, name, folder / "config.json")).is_file():
            return _parts(path) if name.endswith(INDEX) else (path,)
    return ()


def _parts(index: Path) -> tuple[Path, ...]:
    weight_map = read_settings(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WhitenError(f"{index}: has no weight_map, which says where each weight is; copy the model again")
    parts = tuple(_beside(index.parent, name, index) for name in sorted(set(map(str, weight_map.values()))))
    for part in parts:
        if not part.is_file():
            raise UsageError(f"{index}: weights are in '{part.name}', which is not there; copy the model again")
    return parts


def _beside(folder: Path, name: object, file: Path) -> Path:
    if not isinstance(name, str) or not is_beside(name):
        raise WhitenError(f"{file}: weights are in {name!r}, which is not a file beside it")
    return folder / name


def tensor_names(file: Path) -> tuple[str, ...]:
    """Return the names of the tensors in a file of safetensors; none for a damaged one, whose loading says why."""
    try:
        opened: Any = safe_open(file, "numpy")
        return tuple(opened.keys())
    except (OSError, SafetensorError):
        return ()


def module_weights(folder: Path) -> Path:
    """Return the weight file of a module of sentence-transformers."""
    file = _first(folder, NETWORK_WEIGHTS)
    if file is None:
        raise WhitenError(f"{folder}: has no weights ({' or '.join(NETWORK_WEIGHTS)}); copy the model again")
    return file


def adapter_weights(folder: Path) -> Path | None:
    """Return the weight file of a LoRA adapter; None without one."""
    return _first(folder, ADAPTER_WEIGHTS)


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)
