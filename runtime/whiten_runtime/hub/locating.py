"""Find a bundle by what names it: a directory, or a repository of the model hub."""

import glob
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whiten_runtime.bundle.manifest import MANIFEST_FILE, read_manifest
from whiten_runtime.errors import CANNOT_WRITE, FAULTS, BundleError, UsageError, WhitenError, needing, one_line, path_of

SCHEME = "hf://"

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_ID = re.compile(f"{_PART}/{_PART}")
_LONGEST = 96


@dataclass(frozen=True)
class Repository:
    """A repository of the hub."""

    id: str  # ORG/NAME
    revision: str | None = None  # branch, tag or commit; None for the main branch


def is_repository_id(text: str) -> bool:
    """Return whether a text has the form of ORG/NAME."""
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


_OFFLINE, _UNREACHED = "HF_HUB_OFFLINE is set", "the hub is out of reach"


def locate_bundle(path: str | Path, revision: str | None = None, *, refresh: bool = False) -> Path:
    """Return the directory of a bundle, downloaded if it names a repository of the hub that is not in the cache.

    A directory that exists is taken as it is, whatever its name, and so is every `Path`: neither uses the network. Nor
    does ORG/NAME where there is a directory ORG: that is a path in which NAME is missing. With `refresh`, the hub is
    asked for what its branch has now, whatever the cache has.
    """
    if isinstance(path, str) and path.startswith(SCHEME):
        return fetch_bundle(parse_repository(path, revision), refresh)
    here = path_of("bundle", path)
    if isinstance(path, str) and not here.exists():
        if is_repository_id(path):
            if here.parent.is_dir():
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
    """Return the directory of a repository's bundle in the hub's cache; what is missing there is downloaded.

    Only the manifest and the files that it lists are downloaded. The hub is asked for nothing if the
    manifest and its files are in the cache, unless `refresh` wants what the hub has now.
    """
    with needing("hub"):
        from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

    hub_id = repository.id
    why = _OFFLINE if constants.HF_HUB_OFFLINE else _UNREACHED
    absent = (
        f"bundle '{hub_id}' does not exist as a directory, is not whole in the hub's cache, and {why}; check the path, "
        "or copy the cache (HF_HOME) from a machine that has it"
    )
    with hub_errors(hub_id, repository.revision, absent):
        with suppress(LocalEntryNotFoundError):
            folder = None if refresh else _fetch_manifest(repository, local_files_only=True)
            if folder is not None and not _missing(folder):
                return folder
        if not hub_answers():
            raise WhitenError(f"'{hub_id}' was not asked for: {why}" if refresh else absent)
        if refresh:  # the client would take what the cache has, whatever the hub answers
            get_hf_file_metadata(hf_hub_url(hub_id, MANIFEST_FILE, revision=repository.revision))
        folder = _fetch_manifest(repository)
        names = [MANIFEST_FILE, *read_manifest(folder).files]
        patterns = list(map(glob.escape, names))
        snapshot_download(hub_id, revision=folder.name, allow_patterns=patterns, tqdm_class=bar_of_terminals())
    if missing := _missing(folder):
        raise BundleError(f"'{hub_id}' lacks {missing[0]}, though its manifest lists it; push the bundle again")
    return folder


def _fetch_manifest(repository: Repository, local_files_only: bool = False) -> Path:
    """Return the directory of the commit whose manifest is in the cache, or was downloaded."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        path = hf_hub_download(
            repository.id, MANIFEST_FILE, revision=repository.revision, local_files_only=local_files_only
        )
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError:
        raise BundleError(f"'{repository.id}' is not a bundle: export it with whiten-export {repository.id}") from None
    return Path(path).parent


def bar_of_terminals() -> Any:
    """Return the client's progress bar, drawn where stderr is a terminal."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)  # of the client's own bars
            super().__init__(*arguments, **options | {"disable": sys.stderr is None or not sys.stderr.isatty()})

    return Bar


def _missing(folder: Path) -> list[str]:
    return [name for name in read_manifest(folder).files if not (folder / name).is_file()]


_SECONDS = 5.0
"""Seconds within which the hub has to answer, the look-up of its name included."""


def hub_answers() -> bool:
    """Return whether the hub answers within 5 seconds: its client alone would try for half a minute."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    answered = threading.Event()

    def ask() -> None:
        with suppress(Exception):  # those of the HTTP library, which differs between versions of huggingface_hub
            get_session().head(constants.ENDPOINT, timeout=_SECONDS)
            answered.set()

    asking = threading.Thread(target=ask, daemon=True)  # the look-up of a name has no bound of its own
    asking.start()
    asking.join(_SECONDS)
    return answered.is_set()


@contextmanager
def hub_errors(hub_id: str, revision: str | None, absent: str) -> Iterator[None]:
    """Turn what huggingface_hub raises in the block into an error of one line; the block does nothing but call it."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
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
        if isinstance(error, OSError) and (error.filename is not None or error.errno in CANNOT_WRITE):
            place = Path(error.filename or constants.HF_HUB_CACHE).absolute()
            caches = (Path(cache).absolute() for cache in (constants.HF_HOME, constants.HF_HUB_CACHE))
            if not any(map(place.is_relative_to, caches)):  # a file that is uploaded
                raise
            raise WhitenError(
                f"{place}: {error.strerror}; check space and permissions of the hub's cache, or set HF_HOME"
            ) from error
        raise WhitenError(
            f"the hub is out of reach, or the transfer of '{hub_id}' broke off ({type(error).__name__}: "
            f"{one_line(error)}); run it again: what has arrived is kept"
        ) from error
