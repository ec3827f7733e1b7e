"""Read the files of a checkpoint: its settings, which weights are loaded, and which Python code comes with it.

A folder may hold weights that are not loaded, such as those of another precision, an older copy, or half a download:
these are chosen as transformers, peft and sentence-transformers choose them.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from whiten_runtime.bundle.graph import is_beside
from whiten_runtime.errors import UsageError, WhitenError


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WhitenError(f"{path}: cannot be read ({error}); copy the model again") from None


def read_settings(path: Path) -> dict[str, Any]:
    """Read a JSON file of settings by name."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise WhitenError(f"{path}: holds a {type(content).__name__}; wanted settings by name")
    return content


NETWORK_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Names of a network's whole weights, in the order in which transformers looks for them; an index of parts follows."""

ONNX_PLACES = ("model.onnx", "onnx/model.onnx")
"""Places of an ONNX graph in a folder, in the order in which it is looked for."""

WORD_FILES = (".txt", ".vec", ".gz", ".zip")
"""Endings of files of word vectors."""

ADAPTER_CONFIG = "adapter_config.json"

ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""Names of an adapter's weights, in the order in which peft looks for them."""

ADAPTERS_BELOW = 3
"""Number of folders below a network in which adapters are looked for: adapters/retrieval of jina-embeddings-v5 has two,
and one more if the network is in a folder of its own."""

HEADS = {"sparse_linear.pt": "sparse vectors", "colbert_linear.pt": "a vector for each token"}
"""Files of FlagEmbedding with heads beside the one for dense vectors, and what those give."""

MODULES_FILE = "modules.json"
"""Name of the list of modules in a folder of sentence-transformers."""

TRANSFORMER_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of the file with length and casing of sentence-transformers' Transformer; older versions named it after the
architecture."""

TOKENIZER_FILES = ("vocab.*", "*.model", "*.spm", "*.tiktoken", "*.tokenizer", "bpe.codes")
"""Names of files that hold a tokenizer, besides those of JSON and of text."""

INDEX = ".index.json"
"""Suffix of the file that says in which parts weights are stored, after the name of whole weights."""


def network_weights(folder: Path, config: Mapping[str, Any], names: Collection[str] | None = None) -> tuple[Path, ...]:
    """Return the weight files of a network with a config, in the order of their names; none without any.

    `names` are those of the files in its folder, where the weights are not downloaded yet.
    """
    if names is None:
        names = {path.name for path in folder.iterdir() if path.is_file()}
    other = config.get("transformers_weights")  # a name in place of the usual ones
    candidates = [name for whole in NETWORK_WEIGHTS for name in (whole, whole + INDEX)] if other is None else [other]
    for name in candidates:
        if (path := _beside(folder, name, folder / "config.json")).name in names:
            return _parts(path, names) if name.endswith(INDEX) else (path,)
    return ()


def _parts(index: Path, names: Collection[str]) -> tuple[Path, ...]:
    weight_map = read_settings(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WhitenError(f"{index}: has no weight_map, which says where each weight is; copy the model again")
    parts = [_beside(index.parent, name, index) for name in sorted(set(map(str, weight_map.values())))]
    for part in parts:
        if part.name not in names:
            raise UsageError(f"{index}: weights are in '{part.name}', which is not there; copy the model again")
    return tuple(parts)


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
