"""Find a bundle by what names it: a directory, or a repository of the model hub."""

import glob
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whiten_runtime.bundle.manifest import MANIFEST_FILE, read_manifest
from whiten_runtime.errors import (
    CANNOT_WRITE,
    FAULTS,
    BundleError,
    IntegrityError,
    UsageError,
    WhitenError,
    kind_of_place,
    needing,
    one_line,
    path_of,
)
from whiten_runtime.hub.cache import CachedBundle, cached_bundle, commit_of, damaged_files, set_commit, whole_commits
from whiten_runtime.hub.reaching import UNREACHED, why_unreached

SCHEME = "hf://"

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_ID = re.compile(f"{_PART}/{_PART}")
_LONGEST = 96


@dataclass(frozen=True)
class Repository:
    id: str  # ORG/NAME
    revision: str | None = None  # branch, tag or commit; None for the main branch


def is_repository_id(text: str) -> bool:
    whole = _ID.fullmatch(text) is not None
    return whole and len(text) <= _LONGEST and "--" not in text and ".." not in text and not text.endswith(".git")


def parse_repository(text: str, revision: str | None = None) -> Repository:
    """Read the name of a repository: ORG/NAME or ORG/NAME@REVISION, with or without hf:// before it."""
    name, at, own = text.removeprefix(SCHEME).partition("@")
    if not is_repository_id(name) or (at and not own):
        raise UsageError(f"{text!r} does not name a repository of the hub; wanted ORG/NAME or ORG/NAME@REVISION")
    if at and revision is not None:
        raise UsageError(f"'{text}' names a revision already; leave {revision!r} out")
    wanted = own or revision
    if wanted is not None:
        check_revision(wanted)
    return Repository(name, wanted)


def check_revision(revision: str) -> None:
    """Check that a revision can be the name of a branch or tag, or a commit: the hub's cache makes a path of it."""
    if (
        not isinstance(revision, str)
        or not {"", ".", ".."}.isdisjoint(revision.split("/"))
        or not {"\\", ":"}.isdisjoint(revision)
        or not revision.isprintable()
    ):
        raise UsageError(f"revision is {revision!r}; wanted the name of a branch or tag, or a commit")


def locate_bundle(path: str | Path, revision: str | None = None, *, refresh: bool = False) -> Path:
    """Return the directory of a bundle, downloaded if it names a repository of the hub that is not in the cache.

    A directory that exists is taken as it is, whatever its name, and so is every `Path`: neither uses the network. Nor
    does ORG/NAME where there is a directory ORG: that is a path in which NAME is missing. With `refresh`, the hub is
    asked for what its branch has now, whatever the cache has.
    """
    if isinstance(path, str) and path.startswith(SCHEME):
        return fetch_bundle(parse_repository(path, revision), refresh)
    here = path_of("bundle", path)
    if isinstance(path, str) and kind_of_place(here, BundleError) is None:
        if is_repository_id(path):
            if kind_of_place(here.parent, BundleError) == "directory":
                raise BundleError(
                    f"bundle '{path}' does not exist in the directory '{here.parent}'; make one with whiten-export, "
                    f"check the path, or write {SCHEME}{path} for the repository of the hub"
                )
            return fetch_bundle(parse_repository(path, revision), refresh)
        raise BundleError(
            f"bundle '{path}' does not exist; make one with whiten-export, check the path, or name a repository of the "
            "hub (ORG/NAME)"
        )
    if revision is not None:
        raise UsageError(f"revision {revision!r} is for the hub, but '{path}' is a local path; leave it out")
    return here


def fetch_bundle(repository: Repository, refresh: bool = False) -> Path:
    """Return the directory of a repository's bundle in the hub's cache; what is missing or damaged there is downloaded.

    Only the manifest and the files that it lists are downloaded. The hub is asked for nothing if the cache has the
    whole bundle, unless `refresh` wants what the hub has now.

    Raises:
        BundleError: the repository is not a bundle, or an incomplete one, or the copy in the cache is damaged and
            cannot be fetched again; the message says what to delete.
        WhitenError: the hub is needed and cannot be reached, or refuses.
    """
    with needing("hub"):
        import huggingface_hub  # noqa: F401
    hub_id = repository.id
    with cache_errors():
        cached = None if refresh else cached_bundle(hub_id, repository.revision)
        if cached is not None and not cached.damaged:
            return cached.folder
        moved = cached is None and not refresh and commit_of(hub_id, repository.revision) is not None
        if moved and (folder := _only_commit(repository)) is not None:
            return folder
    why = why_unreached()

    def absent(why: str) -> str:
        return (
            f"bundle '{hub_id}' does not exist as a directory, is not whole in the hub's cache, and {why}; check the "
            "path, or copy the cache (HF_HOME) from a machine that has it"
        )

    if why is not None:
        if refresh:
            raise WhitenError(f"'{hub_id}' was not asked for: {why}")
        with cache_errors():
            if cached is not None:
                _check_present(cached, why)
            elif (folder := _only_commit(repository)) is not None:
                return folder
        raise WhitenError(absent(why))
    with hub_errors(hub_id, repository.revision, absent(UNREACHED)):
        return _download(repository, cached)


def _only_commit(repository: Repository) -> Path | None:
    """Return the one whole bundle that the cache has of a repository whose main branch names none there.

    Another program has moved the branch, or the cache was copied without it. There is a warning that names the commit.
    """
    folders = whole_commits(repository.id) if repository.revision is None else []
    if len(folders) > 1:
        names = " or ".join(f"{SCHEME}{repository.id}@{folder.name}" for folder in folders)
        raise WhitenError(
            f"the hub's cache has {len(folders)} bundles of '{repository.id}', and its branch main names none of them; "
            f"write {names}, or fetch the newest with hf download {repository.id}"
        )
    for folder in folders:
        warnings.warn(
            f"branch main of '{repository.id}' names no bundle in the hub's cache; the only one there was opened, "
            f"{SCHEME}{repository.id}@{folder.name}: write that, or fetch the newest with hf download {repository.id}",
            stacklevel=2,
        )
        return folder
    return None


def _check_present(cached: CachedBundle, why: str) -> None:
    for name in cached.damaged:
        path = cached.folder / name
        remedy = f"delete {path.resolve()}, and open the bundle by its name where the hub can be reached: {why}"
        if name == MANIFEST_FILE:
            try:
                read_manifest(cached.folder)
            except BundleError as error:
                raise type(error)(f"{error}; in the hub's cache, {remedy}") from None
        if path.is_file():
            bytes_of = read_manifest(cached.folder).files[name].bytes
            raise IntegrityError(
                f"{path}: {path.stat().st_size} bytes, but {MANIFEST_FILE} says {bytes_of}; the copy is incomplete or "
                f"altered: {remedy}"
            )


def _download(repository: Repository, cached: CachedBundle | None) -> Path:
    """Download the bundle of a commit: that of the cache, or of the revision, which names it in the cache from then on.

    What is there and damaged is downloaded again.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    def fetch(names: Iterable[str], again: bool = False) -> None:
        patterns, bar = list(map(glob.escape, names)), bar_of_terminals()
        snapshot_download(hub_id, revision=commit, allow_patterns=patterns, force_download=again, tqdm_class=bar)

    hub_id = repository.id
    try:
        if cached is None:
            url = hf_hub_url(hub_id, MANIFEST_FILE, revision=repository.revision)
            commit = get_hf_file_metadata(url).commit_hash
            if commit is None:
                raise WhitenError(
                    f"{constants.ENDPOINT} does not say which commit '{hub_id}' has (its answers lack X-Repo-Commit); "
                    "name another hub or mirror in HF_ENDPOINT"
                )
        else:
            commit = cached.folder.name
        folder = Path(hf_hub_download(hub_id, MANIFEST_FILE, revision=commit)).parent
        if MANIFEST_FILE in damaged_files(folder):
            hf_hub_download(hub_id, MANIFEST_FILE, revision=commit, force_download=True)
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError:
        raise BundleError(f"'{hub_id}' is not a bundle: export it with whiten-export {hub_id}") from None
    files = read_manifest(folder).files
    if present := [name for name in damaged_files(folder) if (folder / name).is_file()]:
        fetch(present, again=True)
    fetch([MANIFEST_FILE, *files])
    for name in damaged_files(folder):
        if (folder / name).is_file():
            raise BundleError(f"'{hub_id}': {name} has another size than its manifest says; push the bundle again")
        raise BundleError(f"'{hub_id}' lacks {name}, though its manifest lists it; push the bundle again")
    if cached is None:
        set_commit(hub_id, repository.revision, commit)  # last: a branch of the cache names a whole bundle
    return folder


def bar_of_terminals() -> Any:
    """Return the client's progress bar, drawn where stderr is a terminal."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)  # of the client's own bars
            super().__init__(*arguments, **options | {"disable": sys.stderr is None or not sys.stderr.isatty()})

    return Bar


@contextmanager
def cache_errors() -> Iterator[None]:
    """Turn errors of the system about the hub's cache, such as that of another user, into an error of one line."""
    from huggingface_hub import constants

    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno not in CANNOT_WRITE:
            raise
        place = Path(error.filename or constants.HF_HUB_CACHE).absolute()
        caches = (Path(cache).absolute() for cache in (constants.HF_HOME, constants.HF_HUB_CACHE))
        if not any(map(place.is_relative_to, caches)):
            raise
        raise WhitenError(
            f"{place}: {error.strerror}; check space and permissions of the hub's cache, or set HF_HOME"
        ) from error


@contextmanager
def hub_errors(hub_id: str, revision: str | None, absent: str) -> Iterator[None]:
    """Turn what huggingface_hub raises in the block into an error of one line; the block does nothing but call it."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        with cache_errors():
            yield
    except (WhitenError, *FAULTS):
        raise
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        raise WhitenError(absent) from None
    except GatedRepoError:
        raise WhitenError(f"'{hub_id}' is gated; accept its terms on the hub and log in with hf auth login") from None
    except RevisionNotFoundError:
        raise UsageError(f"'{hub_id}' has no revision '{revision}'; check the branch, tag or commit") from None
    except RepositoryNotFoundError:
        raise UsageError(
            f"'{hub_id}' does not exist on the hub, or is private; check its name, or log in with hf auth login"
        ) from None
    except HfHubHTTPError as error:
        raise WhitenError(
            f"the hub refused '{hub_id}': {one_line(error)}; check your token (hf auth login), or try again later"
        ) from error
    except Exception as error:  # those of the HTTP library, which differs between versions of huggingface_hub
        if isinstance(error, OSError) and error.filename is not None:  # a file that is uploaded
            raise
        raise WhitenError(
            f"the hub is out of reach, or the transfer of '{hub_id}' broke off ({type(error).__name__}: "
            f"{one_line(error)}); run it again: what has arrived is kept"
        ) from error
