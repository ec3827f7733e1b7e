"""Find a bundle by what names it: a directory, or a repository of the model hub."""

from pathlib import Path

from whiten_runtime.bundle.manifest import MANIFEST_FILE, read_manifest
from whiten_runtime.bundle.signature import SIGNATURE_FILE
from whiten_runtime.checks import needing, path_of
from whiten_runtime.errors import BundleError, UsageError, WhitenError
from whiten_runtime.hub.names import SCHEME, Repository, is_repository_id, parse_repository
from whiten_runtime.hub.refusals import hub_answers, hub_errors

_OFFLINE, _UNREACHED = "HF_HUB_OFFLINE is set", "the hub is out of reach"


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
        UsageError: what names the bundle is no text and no path, or an empty one; or a revision was given for a
            directory, or there is no such repository or revision.
        WhitenError: the hub cannot be reached, breaks off, or refuses.
        MissingPackageError: huggingface_hub is not installed.
    """
    if isinstance(path, str) and path.startswith(SCHEME):
        return fetch_bundle(parse_repository(path, revision))
    here = path_of("bundle", path)
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

    Only the manifest, the files that it lists and a signature are downloaded. The hub is asked for nothing if the
    manifest and its files are in the cache. If the commit that the cache has of a branch is no whole bundle, nor can be
    completed, the newest one is fetched.

    Args:
        repository: the repository.

    Raises:
        BundleError: the repository holds no bundle.
        UsageError: no such repository or revision.
        WhitenError: the hub cannot be reached, breaks off, or refuses.
        MissingPackageError: huggingface_hub is not installed.
    """
    with needing("hub"):
        from huggingface_hub import constants
        from huggingface_hub.errors import LocalEntryNotFoundError

    hub_id, wanted = repository.id, repository.revision
    why = _OFFLINE if constants.HF_HUB_OFFLINE else _UNREACHED
    absent = (
        f"bundle '{hub_id}' does not exist as a directory, is not whole in the hub's cache, and {why}; check the path, "
        "or copy the cache (HF_HOME) from a machine that has it"
    )
    with hub_errors(hub_id, wanted, absent):
        try:
            folder = _fetch_manifest(repository, local_files_only=True)
        except LocalEntryNotFoundError:
            if not hub_answers():
                raise
            folder = _complete(hub_id, _fetch_manifest(repository))
            _download_signature(hub_id, folder)
            return folder
        try:
            return _complete(hub_id, folder)
        except BundleError as error:
            if folder.name == wanted:  # a commit: there is no newer one
                raise
            broken = error
    return _renew(repository, folder, broken)


def fetch_signature(path: str | Path, folder: Path, revision: str | None = None) -> Path | None:
    """Return the signature of a bundle of the hub, downloaded if it is not in the cache; None if there is none.

    Args:
        path: what names the bundle, as for `locate_bundle`; None is returned for a directory.
        folder: its directory, as `locate_bundle` returned it.
        revision: branch, tag or commit, as for `locate_bundle`.

    Raises:
        WhitenError: the hub cannot be reached, breaks off, or refuses.
    """
    if isinstance(path, Path) or (not path.startswith(SCHEME) and Path(path).exists()):
        return None
    hub_id = parse_repository(path, revision).id
    with hub_errors(hub_id, folder.name, f"the signature of '{hub_id}' is not in the hub's cache, and {_UNREACHED}"):
        return _download_signature(hub_id, folder)


def _renew(repository: Repository, folder: Path, broken: BundleError) -> Path:
    """Return the directory of the newest commit, in place of one in the cache that is no whole bundle.

    Raises:
        BundleError: the newest commit cannot be fetched, or is no whole bundle either.
    """
    from huggingface_hub import constants

    try:
        with hub_errors(repository.id, repository.revision, _UNREACHED):
            if not hub_answers():
                raise WhitenError(_OFFLINE if constants.HF_HUB_OFFLINE else _UNREACHED)
            newest = _fetch_manifest(repository, force_download=True)
    except WhitenError as error:
        raise BundleError(f"{broken} (no newer commit could be fetched: {error})") from None
    try:
        with hub_errors(repository.id, newest.name, _UNREACHED):
            _complete(repository.id, newest)
            _download_signature(repository.id, newest)
            return newest
    except BundleError as error:
        same = newest.name == folder.name
        newer = "the hub's newest commit; the one in the cache is not whole either"
        raise BundleError(f"{error} ({'the hub has no newer commit' if same else newer})") from None


def _fetch_manifest(repository: Repository, local_files_only: bool = False, force_download: bool = False) -> Path:
    """Return the directory of the commit whose manifest is in the cache, or was downloaded."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    hub_id = repository.id
    try:
        path = hf_hub_download(
            hub_id,
            MANIFEST_FILE,
            revision=repository.revision,
            local_files_only=local_files_only,
            force_download=force_download,
        )
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError:
        raise BundleError(f"'{hub_id}' is not a bundle: export it with whiten-export {hub_id}") from None
    except ValueError as error:  # with force_download, the client hides the reason
        raise error.__cause__ or error from None
    return Path(path).parent


def _complete(hub_id: str, folder: Path) -> Path:
    """Download those files of a commit that its manifest lists and the cache lacks, and return its directory.

    Raises:
        BundleError: the manifest cannot be read, or the hub does not have a file, or no longer has the commit.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RevisionNotFoundError

    missing = [name for name in read_manifest(folder).files if not (folder / name).is_file()]
    offline = bool(missing) and not hub_answers()
    for name in missing:
        try:  # by the commit: the branch may have moved meanwhile
            hf_hub_download(hub_id, name, revision=folder.name, local_files_only=offline)
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError:
            raise BundleError(f"'{hub_id}' lacks {name}, though its manifest lists it; push the bundle again") from None
        except RevisionNotFoundError:
            raise BundleError(
                f"'{hub_id}' no longer has commit {folder.name}, whose {name} is not in the cache; fetch another commit"
            ) from None
    return folder


def _download_signature(hub_id: str, folder: Path) -> Path | None:
    """Return the signature of a commit, downloaded if need be; None where the hub has none, or may not be asked."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(hub_id, SIGNATURE_FILE, revision=folder.name, local_files_only=True))
    except LocalEntryNotFoundError:
        if constants.HF_HUB_OFFLINE:
            return None
        if not hub_answers():
            raise
    try:
        return Path(hf_hub_download(hub_id, SIGNATURE_FILE, revision=folder.name))
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError:
        return None
