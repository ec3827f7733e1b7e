"""Upload a bundle to a repository of the model hub, in one commit that leaves no weights of an older bundle there."""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from whiten_runtime.bundle.bundle import Bundle, is_model_file, open_bundle
from whiten_runtime.bundle.manifest import MANIFEST_FILE, read_manifest
from whiten_runtime.errors import BundleError, UsageError, WhitenError, needing
from whiten_runtime.hub.locating import Repository, hub_errors
from whiten_runtime.hub.reaching import UNREACHED, why_unreached

CARD_FILE = "README.md"


@dataclass(frozen=True)
class Upload:
    url: str  # address of the commit
    commit: str  # id of the commit
    files: tuple[str, ...]  # POSIX paths of the files that the commit contains
    bytes: int  # size of these files
    removed: tuple[str, ...]  # files of an older bundle that the commit removes


def push_bundle(path: Path, repository: Repository, private: bool = False) -> Upload:
    """Check a bundle, and upload its manifest, the files that it lists, and README.md.

    A repository or branch that does not exist is created. Graphs and weights that the manifest in the repository lists
    are removed in the same commit if the new bundle does not have them; any other file there stays.
    Nothing is created or changed if the push is refused, and nothing is kept on this machine. A repository into which
    somebody else pushes meanwhile is refused, and so is a bundle that is replaced meanwhile.
    """
    bundle, hub_id, branch = open_bundle(path), repository.id, repository.revision
    _check_token(hub_id)
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    names = _files_of(bundle)
    if (why := why_unreached()) is not None:
        raise WhitenError(f"'{hub_id}' is unchanged: {why}")
    with hub_errors(hub_id, branch, f"'{hub_id}' is unchanged: {UNREACHED}"):
        api = HfApi()
        info = _describe(api, repository)
        if info is None:
            api.create_repo(hub_id, private=private or None, exist_ok=True)
            info = _describe(api, repository)
        removed = _stale_files(api, hub_id, info, names, private)
        if branch is not None:
            api.create_branch(hub_id, branch=branch, revision=info.sha, exist_ok=True)
        operations: list[Any] = [
            *(CommitOperationAdd(name, bundle.path / name) for name in names),
            *(CommitOperationDelete(name) for name in removed),
        ]
        bundle.check_unchanged()
        commit = _commit(api, repository, operations, f"Upload {bundle.manifest.name}", info.sha)
    size = sum((bundle.path / name).stat().st_size for name in names)
    return Upload(commit.commit_url, commit.oid, names, size, removed)


def _check_token(hub_id: str) -> None:
    """Raise WhitenError if the network is forbidden, or there is no token."""
    with needing("hub"):
        from huggingface_hub import constants, get_token
    if constants.HF_HUB_OFFLINE:
        raise WhitenError(f"HF_HUB_OFFLINE is set; unset it to upload to '{hub_id}'")
    if get_token() is None:
        raise WhitenError(f"there is no token to upload to '{hub_id}' with; run hf auth login, or set HF_TOKEN")


def _files_of(bundle: Bundle) -> tuple[str, ...]:
    """Return the manifest, the files that it lists, and README.md if there is one."""
    card = [CARD_FILE] if (bundle.path / CARD_FILE).is_file() else []
    return tuple(sorted({MANIFEST_FILE, *bundle.manifest.files, *card}))


def _commit(api: Any, repository: Repository, operations: Sequence[Any], message: str, parent: str) -> Any:
    from huggingface_hub.errors import HfHubHTTPError

    hub_id, branch = repository.id, repository.revision
    try:
        return api.create_commit(hub_id, operations, commit_message=message, revision=branch, parent_commit=parent)
    except HfHubHTTPError as error:
        if error.response.status_code != HTTPStatus.PRECONDITION_FAILED:
            raise
        raise WhitenError(f"'{hub_id}' was changed meanwhile, and nothing was uploaded; push again") from None


def _stale_files(api: Any, hub_id: str, info: Any, names: Sequence[str], private: bool) -> tuple[str, ...]:
    """Return graphs and weights of the bundle in a repository that a new bundle does not have.

    Raises:
        UsageError: the repository has graphs, weights or code of another model, or is public and has to be private.
    """
    if private and not info.private:
        raise UsageError(f"'{hub_id}' is public; choose another name, or leave --private out")
    there = {file.rfilename for file in info.siblings or ()}
    others = {name for name in there if is_model_file(name)} - set(names)
    if MANIFEST_FILE not in there:
        if others:
            raise UsageError(
                f"'{hub_id}' holds {min(others)} and no {MANIFEST_FILE}: it is another model's repository; choose a "
                "new name"
            )
        return ()
    if others and (foreign := sorted(others - _listed(api, hub_id, info.sha))):
        raise UsageError(
            f"'{hub_id}' holds {', '.join(foreign)}, which no bundle there lists, and other programs would take for "
            "the bundle's; move them to another repository, or choose another name"
        )
    return tuple(sorted(others))


def _describe(api: Any, repository: Repository) -> Any:
    """Return what the hub says of a repository's branch; None if there is no such repository."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return api.model_info(repository.id, revision=repository.revision)
    except RevisionNotFoundError:
        return api.model_info(repository.id)  # a new branch begins with the files of main
    except GatedRepoError:
        raise
    except RepositoryNotFoundError:
        return None


def _listed(api: Any, hub_id: str, commit: str) -> frozenset[str]:
    """Return the files that the manifest in a repository lists; none if it cannot be read."""
    with TemporaryDirectory() as folder:
        api.hf_hub_download(hub_id, MANIFEST_FILE, revision=commit, local_dir=folder)
        try:
            return frozenset(read_manifest(Path(folder)).files)
        except BundleError:
            return frozenset()
