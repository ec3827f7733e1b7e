"""Say why a path holds no model that can be exported, and what of a model is left out; and what to do about it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whiten_export.sources.describe.hub import HEADS
from whiten_export.sources.describe.published import TEXT_OF_CLIP, Published
from whiten_export.sources.describe.weights import ADAPTER_CONFIG, tensor_names
from whiten_runtime.errors import UsageError

_DEEPEST = 3
"""Number of folders below a path in which a model is looked for."""

_MOST = 3
"""Number of folders that a message names."""

_PROJECTION = "text_projection.weight"

_OF_MODELS = (".onnx", ".safetensors", ".bin", ".pt", ".pth", ".h5", ".json")


def refuse_file(model: str, path: Path, wanted: Sequence[str]) -> UsageError:
    """Return the error of a file that is no file of word vectors."""
    inside = path.suffix.lower() in _OF_MODELS
    way = f": name its folder, {path.parent}" if inside else ""
    return UsageError(f"'{model}' is a file; wanted a directory, or word vectors ({', '.join(wanted)}){way}")


def refuse_folder(model: str, path: Path, needed: Sequence[str]) -> UsageError:
    """Return the error of a folder without config.json."""
    graphs = sorted(file.name for file in path.glob("*.onnx"))
    if graphs:
        absent = [name for name in needed if not (path / name).is_file()]
        return UsageError(
            f"'{model}' has {graphs[0]}, but no {' and no '.join(absent)}: copy "
            f"{'both' if len(absent) == 2 else 'it'} from the model's repository"
        )
    if not path.is_dir():
        return UsageError(f"'{model}' has no config.json; {path} is not a folder: copy the model again")
    if below := _models_below(path):
        more = f", and {len(below) - _MOST} others" if len(below) > _MOST else ""
        return UsageError(
            f"'{model}' has no config.json, but a folder below has one: name {' or '.join(below[:_MOST])}{more}"
        )
    return UsageError(f"'{model}' has no config.json; wanted a directory written by save_pretrained")


def refuse_weights(model: str, path: Path, wanted: Sequence[str]) -> UsageError:
    """Return the error of a folder with config.json and without weights."""
    message = f"'{model}' has no weights ({', '.join(wanted)}) in {path}; "
    if graphs := sorted(file.name for file in (*path.glob("*.onnx"), *path.glob("onnx/*.onnx"))):
        return UsageError(f"{message}it has {' and '.join(graphs[:_MOST])}: rename the one that you want to model.onnx")
    return UsageError(f"{message}wanted a directory written by save_pretrained, or by optimum-cli export onnx")


def note_of_base(model: str, base: str, own: Published) -> str:
    """Return what an export says of an adapter that does not say how it makes vectors, while its base does."""
    left = f", but for {', '.join(map(str, own.modules))}" if own.modules else ""
    return (
        f"adapter '{model}' does not say how it makes vectors, and its base '{base}' is an embedding model: to make "
        f"them as that does{left}, pass --layers -1 --pooling {own.pooling} --whitening none"
        f"{' --normalize' if own.normalize else ''}"
    )


def note_of_heads(path: Path) -> tuple[str, ...]:
    """Return what an export says of heads beside the one for dense vectors, such as bge-m3's; none is loaded."""
    heads = [f"{what} ({name})" for name, what in HEADS.items() if (path / name).is_file()]
    return (f"the heads for {' and '.join(heads)} are left out: the bundle gives dense vectors alone",) if heads else ()


def note_of_projection(weights: Sequence[Path]) -> tuple[str, ...]:
    """Return what an export says of a text network with a projection, such as CLIP's, after its hidden states."""
    names = {name for file in weights if file.suffix == ".safetensors" for name in tensor_names(file)}
    if _PROJECTION not in names:
        return ()
    return (
        f"{_PROJECTION} is left out: the vectors are of the network's hidden states, and not its text embeddings, "
        "which CLIP compares with images",
    )


def note_of_adapters(path: Path) -> tuple[str, ...]:
    """Return what an export says of LoRA adapters in folders below a network, such as those of jina-embeddings-v3-hf.

    The network without any of them gives other vectors than with one.
    """
    names = sorted(config.parent.name for config in path.glob(f"*/{ADAPTER_CONFIG}"))
    if not names:
        return ()
    more = f" and {len(names) - _MOST} others" if len(names) > _MOST else ""
    return (
        f"{path} has LoRA adapters, of which none is applied: {', '.join(names[:_MOST])}{more}. To export the model "
        f"with one, name its folder; the base_model_name_or_path of its {ADAPTER_CONFIG} has to be the network's",
    )


def way_to_text(settings: Mapping[str, Any]) -> str:
    """Return what to do about a network of texts and something else, such as CLIP; an empty string for another one."""
    if "text_config" not in settings:
        return ""
    if settings.get("model_type") == "clip":
        return f": {TEXT_OF_CLIP}"
    return ": save its network of texts alone, by transformers, and export that folder"


def _models_below(path: Path) -> list[str]:
    """Return the folders below a path that have a config.json, the nearest first, but none inside another of them."""
    found: list[Path] = []
    for depth in range(1, _DEEPEST + 1):
        configs = sorted(path.glob("*/" * depth + "config.json"))
        found += [config.parent for config in configs if not any(one in config.parents for one in found)]
    return [str(folder) for folder in found]
