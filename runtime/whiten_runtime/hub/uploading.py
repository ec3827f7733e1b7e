"""Upload a bundle to a repository of the model hub, in one commit."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from whiten_runtime.bundle.bundle import SIGNATURE_FILE, Bundle, is_model_file, open_bundle
from whiten_runtime.bundle.manifest import MANIFEST_FILE, read_manifest
from whiten_runtime.errors import BundleError, UsageError, WhitenError, needing
from whiten_runtime.hub.locating import Repository, hub_answers, hub_errors

CARD_FILE = "README.md"

_TOKEN = {401: "is not valid", 403: "may not write there"}
"""What is wrong with a token, by the status of the hub's answer."""


@dataclass(frozen=True)
class Destination:
    """Says where a bundle is uploaded to."""

    repository: Repository  # repository and branch; None as its revision for the main branch
    private: bool = False  # whether the repository has to be private
    create: bool = True  # whether a repository or branch that does not exist is created
    message: str | None = None  # message of the commit; None for one that names the bundle


@dataclass(frozen=True)
class Upload:
    """Describes a bundle that was uploaded."""

    url: str  # address of the commit
    commit: str  # id of the commit
    files: tuple[str, ...]  # POSIX paths of the files that the commit contains
    bytes: int  # size of these files
    removed: tuple[str, ...]  # files of an older bundle that the commit removes


@dataclass(frozen=True)
class _Found:
    """Describes what is there before an upload."""

    exists: bool
    has_branch: bool
    commit: str | None = None
    files: tuple[str, ...] = ()


def push_bundle(path: Path, destination: Destination) -> Upload:
    """Check a bundle, and upload its manifest, the files that it lists and README.md.

    Graphs and weights that the manifest in the repository lists, and a signature, are removed in the same commit if the
    new bundle does not have them; any other file there stays. Nothing is created or changed if the push is refused, and
    nothing is kept on this machine.
    """
    bundle, hub_id = open_bundle(path), destination.repository.id
    _check_token(hub_id)
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    names = files_of(bundle)
    unreached = f"the hub is out of reach, and '{hub_id}' is unchanged; try again later"
    if not hub_answers():
        raise WhitenError(unreached)
    with hub_errors(hub_id, destination.repository.revision, unreached):
        try:
            api = HfApi()
            found = _look(api, destination)
            removed = _left_over(api, hub_id, found, names)
            _create(api, destination, found)
            done = _commit(api, bundle, names, removed, destination)
        except HfHubHTTPError as error:
            if (why := _TOKEN.get(error.response.status_code if error.response is not None else 0)) is None:
                raise
            raise WhitenError(
                f"the hub refused '{hub_id}': the token {why}; log in with hf auth login as one who may"
            ) from None
    size = sum((bundle.path / name).stat().st_size for name in names)
    return Upload(done.commit_url, done.oid, names, size, removed)


def _check_token(hub_id: str) -> None:
    """Raise WhitenError if the network is forbidden, or there is no token."""
    with needing("hub"):
        from huggingface_hub import constants, get_token
    if constants.HF_HUB_OFFLINE:
        raise WhitenError(f"HF_HUB_OFFLINE is set; unset it to upload to '{hub_id}'")
    if get_token() is None:
        raise WhitenError(f"there is no token to upload to '{hub_id}' with; run hf auth login, or set HF_TOKEN")


def _commit(api: Any, bundle: Bundle, names: Sequence[str], removed: Sequence[str], destination: Destination) -> Any:
    """Upload files and remove others in one commit, and return what the client says of it."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    operations = [
        *(CommitOperationAdd(name, bundle.path / name) for name in names),
        *(CommitOperationDelete(name) for name in removed),
    ]
    message = destination.message or f"Upload {bundle.manifest.name}"
    repository = destination.repository
    return api.create_commit(repository.id, operations, commit_message=message, revision=repository.revision)


def files_of(bundle: Bundle) -> tuple[str, ...]:
    """Return the files of an upload: the manifest, those that it lists, and README.md and a signature if there."""
    beside = (name for name in (CARD_FILE, SIGNATURE_FILE) if (bundle.path / name).is_file())
    return tuple(sorted({MANIFEST_FILE, *bundle.manifest.files, *beside}))


def other_models(there: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return graphs, weights and code in a repository that a new bundle does not have: they would spoil it."""
    return tuple(sorted(name for name in there if is_model_file(name) and name not in names))


def _look(api: Any, destination: Destination) -> _Found:
    """Look at the repository, and change nothing."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    repository, has_branch = destination.repository, True
    try:
        try:
            info = api.model_info(repository.id, revision=repository.revision)
        except RevisionNotFoundError:
            if not destination.create or repository.revision is None:
                raise
            info, has_branch = api.model_info(repository.id), False  # a new branch begins with the files of main
    except GatedRepoError:
        raise
    except RepositoryNotFoundError:
        if not destination.create:
            raise
        return _Found(False, False)
    if destination.private and not info.private:
        raise UsageError(f"'{repository.id}' is public; choose another name, or leave --private out")
    return _Found(True, has_branch, info.sha, tuple(file.rfilename for file in info.siblings or ()))


def _left_over(api: Any, hub_id: str, found: _Found, names: Sequence[str]) -> tuple[str, ...]:
    """Return graphs, weights and the signature of the bundle in a repository that a new bundle does not have."""
    others = other_models(found.files, names)
    stale = {SIGNATURE_FILE} & set(found.files) - set(names) if MANIFEST_FILE in found.files else set()
    if not others:
        return tuple(stale)
    if MANIFEST_FILE not in found.files:
        raise UsageError(
            f"'{hub_id}' holds {others[0]} and no {MANIFEST_FILE}: it is another model's repository; choose a new name"
        )
    listed = _listed(api, hub_id, found.commit)
    if foreign := [name for name in others if name not in listed]:
        raise UsageError(
            f"'{hub_id}' holds {', '.join(foreign)}, which no bundle there lists, and other programs would take for "
            "the bundle's; move them to another repository, or choose another name"
        )
    return tuple(sorted({*others, *stale}))


def _listed(api: Any, hub_id: str, commit: str | None) -> frozenset[str]:
    """Return the files that the manifest in a repository lists; none if it cannot be read."""
    with TemporaryDirectory() as folder:
        api.hf_hub_download(hub_id, MANIFEST_FILE, revision=commit, local_dir=folder)
        try:
            return frozenset(read_manifest(Path(folder)).files)
        except BundleError:
            return frozenset()


def _create(api: Any, destination: Destination, found: _Found) -> None:
    """Create the repository and the branch that do not exist."""
    repository = destination.repository
    if not found.exists:
        api.create_repo(repository.id, private=destination.private or None)
    if not found.has_branch and repository.revision is not None:
        api.create_branch(repository.id, branch=repository.revision)
