"""Find a bundle by what names it: a directory, or a repository of the model hub."""

from pathlib import Path

from whiten_runtime.bundle.manifest import MANIFEST_FILE, read_manifest
from whiten_runtime.checks import needing
from whiten_runtime.errors import BundleError, UsageError
from whiten_runtime.hub.names import SCHEME, Repository, is_repository_id, parse_repository
from whiten_runtime.hub.refusals import hub_errors


def locate_bundle(path: str | Path, revision: str | None = None) -> Path:
    """Return the directory of a bundle, downloaded if it names a repository of the hub that is not in the cache.

    A directory that exists is taken as it is, whatever its name, and so is every `Path`: neither uses the network. Nor
    does ORG/NAME where there is a directory ORG: that is a path in which NAME is missing.

    Args:
        path: directory, ORG/NAME, hf://ORG/NAME or hf://ORG/NAME@REVISION.
        revision: branch, tag or commit of the repository; None for the main branch.

    Returns:
        The directory, as it was given, or the one in the hub's cache; the name of the latter is the commit.

    Raises:
        BundleError: there is no such directory, or the repository holds no bundle.
        UsageError: a revision was given for a directory, or there is no such repository or revision.
        WhitenError: the hub cannot be reached, breaks off, or refuses.
        MissingPackageError: huggingface_hub is not installed.
    """
    if isinstance(path, str) and path.startswith(SCHEME):
        return fetch_bundle(parse_repository(path, revision))
    here = Path(path)
    if isinstance(path, str) and not here.exists():
        if is_repository_id(path):
            if here.parent.is_dir():
                raise BundleError(
                    f"bundle '{path}' does not exist in the directory '{here.parent}'; make one with whiten-export, "
                    f"check the path, or write {SCHEME}{path} for the repository of the hub"
                )
            return fetch_bundle(parse_repository(path, revision))
        raise BundleError(
            f"bundle '{path}' does not exist; make one with whiten-export, check the path, or name a repository of the "
            "hub (ORG/NAME)"
        )
    if revision is not None:
        raise UsageError(f"revision {revision!r} is for the hub, but '{path}' is a local path; leave it out")
    return here


def fetch_bundle(repository: Repository) -> Path:
    """Return the directory of a repository's bundle in the hub's cache; what is missing there is downloaded.

    Only the manifest and the files that it lists are downloaded. The hub is asked for nothing if all are in the cache.

    Args:
        repository: the repository.

    Raises:
        BundleError: the repository holds no bundle.
        UsageError: no such repository or revision.
        WhitenError: the hub cannot be reached, breaks off, or refuses.
        MissingPackageError: huggingface_hub is not installed.
    """
    with needing("hub"):
        from huggingface_hub import constants, hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    def fetch(name: str, revision: str | None, lacking: BundleError, cached: bool = False) -> Path:
        try:
            local = cached or constants.HF_HUB_OFFLINE
            return Path(hf_hub_download(repository.id, name, revision=revision, local_files_only=local))
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError:
            raise lacking from None

    hub_id, wanted = repository.id, repository.revision
    no_bundle = BundleError(f"'{hub_id}' is not a bundle: export it with whiten-export {hub_id}")
    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub is out of reach"
    absent = (
        f"bundle '{hub_id}' does not exist as a directory, is not whole in the hub's cache, and {why}; check the path, "
        "or copy the cache (HF_HOME) from a machine that has it"
    )
    with hub_errors(hub_id, wanted, absent):
        try:
            manifest = fetch(MANIFEST_FILE, wanted, no_bundle, cached=True)
        except LocalEntryNotFoundError:
            manifest = fetch(MANIFEST_FILE, wanted, no_bundle)
        folder = manifest.parent
        for name in read_manifest(folder).files:
            if not (folder / name).is_file():  # by the commit: the branch may have moved meanwhile
                lacking = BundleError(f"'{hub_id}' lacks {name}, though its manifest lists it; push the bundle again")
                fetch(name, folder.name, lacking)
    return folder
