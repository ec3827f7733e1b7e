"""Read the config and the weights of a module of sentence-transformers, without PyTorch where possible."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from whiten_export.proof.reference import ACTIVATIONS, Dense, LayerNorm
from whiten_runtime.errors import WhitenError

State = dict[str, NDArray[np.float32]]

_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
_TORCH = "torch.nn.modules."
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32}


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise WhitenError(f"{path}: cannot be read ({error}); copy the model again") from None


def read_settings(path: Path) -> dict[str, Any]:
    """Read a JSON file of settings by name."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise WhitenError(f"{path}: holds a {type(content).__name__}; wanted settings by name")
    return content


def read_dense(folder: Path) -> tuple[Dense, tuple[Path, ...]]:
    """Read a Dense, and return it with its weight files."""
    path = folder / "config.json"
    settings = read_settings(path)
    bias, residual = settings.pop("bias", True), settings.pop("use_residual", False)
    activation = str(settings.pop("activation_function", f"{_TORCH}activation.Tanh"))
    name = activation.rsplit(".", 1)[-1]
    if not activation.startswith(_TORCH) or name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise WhitenError(f"{path}: activation_function '{activation}' is not supported; wanted {known} of torch.nn")
    for place in ("module_input_name", "module_output_name"):
        if settings.pop(place, None) not in (None, "sentence_embedding"):
            raise WhitenError(f"{path}: {place} is not sentence_embedding, which is not supported")
    before, after = settings.pop("in_features", None), settings.pop("out_features", None)
    _check_none_left(settings, path)
    state, file = _read_state(folder)
    wanted = {"linear.weight": (after, before)} | ({"linear.bias": (after,)} if bias else {})
    if residual and before != after:
        wanted["residual.weight"] = (after, before)
    _check_state(state, wanted, file)
    added = state["residual.weight"].T if "residual.weight" in wanted else np.eye(before, dtype=np.float32)
    dense = Dense(
        weight=np.ascontiguousarray(state["linear.weight"].T),
        bias=state["linear.bias"] if bias else None,
        activation=name,
        residual=np.ascontiguousarray(added) if residual else None,
    )
    return dense, (file,)


def read_layer_norm(folder: Path) -> tuple[LayerNorm, tuple[Path, ...]]:
    """Read a LayerNorm, and return it with its weight files."""
    path = folder / "config.json"
    settings = read_settings(path)
    width = settings.pop("dimension", None)
    _check_none_left(settings, path)
    state, file = _read_state(folder)
    _check_state(state, {"norm.weight": (width,), "norm.bias": (width,)}, file)
    return LayerNorm(state["norm.weight"], state["norm.bias"]), (file,)


def read_layer_weights(folder: Path) -> tuple[int, tuple[float, ...], tuple[Path, ...]]:
    """Read a WeightedLayerPooling, and return its first layer, the weights of the layers, and its weight files."""
    path = folder / "config.json"
    settings = read_settings(path)
    first, count = settings.get("layer_start", 4), settings.get("num_hidden_layers", 12)
    for name, value in (("layer_start", first), ("num_hidden_layers", count)):
        if not isinstance(value, int) or value < 0:
            raise WhitenError(f"{path}: {name} is {value!r}; wanted a whole number of at least 0")
    state, file = _read_state(folder)
    _check_state(state, {"layer_weights": (count + 1 - first,)}, file)
    weights = tuple(float(weight) for weight in state["layer_weights"])
    if not sum(weights) or not np.isfinite(weights).all():
        why = "sum to 0" if np.isfinite(weights).all() else "are not finite"
        raise WhitenError(f"{file}: the layer weights {why}, so their average does not exist")
    return first, weights, (file,)


def read_static(folder: Path) -> tuple[NDArray[np.float32], Path]:
    """Read the table of a StaticEmbedding, [number of tokens, d], and return it with its file.

    In model2vec's files, several tokens may share a row (`mapping`), and each may have a weight (`weights`).
    """
    state, file = _read_state(folder)
    if "embedding.weight" in state:
        _check_state(state, {"embedding.weight": state["embedding.weight"].shape}, file)
        return _checked_table(state, "embedding.weight", file), file
    mapping, weights = state.pop("mapping", None), state.pop("weights", None)
    if list(state) != ["embeddings"]:
        other = next((name for name in state if name != "embeddings"), "no tensor")
        raise WhitenError(f"{file}: has {other}; wanted embedding.weight, or embeddings with mapping and weights")
    table = _checked_table(state, "embeddings", file)
    if mapping is not None:
        rows = mapping.astype(np.int64)
        if rows.ndim != 1 or (rows != mapping).any() or not ((rows >= 0) & (rows < len(table))).all():
            raise WhitenError(f"{file}: mapping does not name one of the {len(table)} rows for each token")
        table = table[rows]
    if weights is not None:
        if weights.shape != (len(table),):
            raise WhitenError(f"{file}: weights has the shape {weights.shape}; wanted {(len(table),)}, one a token")
        table = table * weights[:, None]
    return np.ascontiguousarray(table), file


def _checked_table(state: State, name: str, file: Path) -> NDArray[np.float32]:
    if state[name].ndim != 2:
        raise WhitenError(f"{file}: {name} has the shape {state[name].shape}; wanted rows of equal width")
    return state[name]


def _check_none_left(settings: dict[str, Any], path: Path) -> None:
    if settings:
        raise WhitenError(f"{path}: has the setting '{next(iter(settings))}', which is not supported")


def _check_state(state: State, wanted: dict[str, tuple[Any, ...]], file: Path) -> None:
    for name, shape in wanted.items():
        if name not in state or state[name].shape != shape:
            found = state[name].shape if name in state else "nothing"
            raise WhitenError(f"{file}: {name} is {found}, but its config.json says {shape}; copy the model again")
    if surplus := state.keys() - wanted.keys():
        raise WhitenError(f"{file}: has the weight '{min(surplus)}', which is not supported")


def weight_file(folder: Path) -> Path:
    """Return the weight file of a module."""
    file = next((folder / name for name in _WEIGHT_FILES if (folder / name).is_file()), None)
    if file is None:
        raise WhitenError(f"{folder}: has no weights ({' or '.join(_WEIGHT_FILES)}); copy the model again")
    return file


def _read_state(folder: Path) -> tuple[State, Path]:
    file = weight_file(folder)
    if file.suffix == ".bin":
        from whiten_export.sources.networks.network import load_state

        return load_state(file), file
    try:
        tensors = deserialize(  # type: ignore[no-untyped-call]
            file.read_bytes()
        )
    except (OSError, SafetensorError, ValueError) as error:
        raise WhitenError(f"{file}: cannot be read ({error}); copy the model again") from None
    for name, tensor in tensors:
        if tensor["dtype"] not in (*_DTYPES, "BF16"):
            raise WhitenError(f"{file}: {name} holds {tensor['dtype']}, which is not supported")
    return {name: _array(tensor) for name, tensor in tensors}, file


def _array(tensor: Any) -> NDArray[np.float32]:
    """Return a tensor as float32; numpy has no bfloat16, whose bits are the upper half of a float32's."""
    shape, kind, data = tensor["shape"], tensor["dtype"], tensor["data"]
    if kind == "BF16":
        bits = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(shape)
    array = np.frombuffer(data, _DTYPES[kind]).reshape(shape)
    return array if kind.startswith("I") else array.astype(np.float32)
