"""Find, download and upload bundles on the model hub. huggingface_hub is imported in functions only."""

import glob
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from whiten_runtime.bundle.bundle import CLIENT_FILES, Bundle, is_model_file, open_bundle
from whiten_runtime.bundle.manifest import MANIFEST_FILE, FileRecord, read_manifest
from whiten_runtime.errors import (
    CANNOT_WRITE,
    FAULTS,
    BundleError,
    UsageError,
    WhitenError,
    kind_of_place,
    needing,
    one_line,
    path_of,
)
from whiten_runtime.ort.process import in_thread

UNREACHED = "the hub is out of reach"
OFFLINE = "HF_HUB_OFFLINE is set"

_TIMEOUT = "HF_HUB_ETAG_TIMEOUT"
"""The client's own variable for the seconds that it waits for an answer without a file, 10 by default."""

_LOGIN = 407
"""Status of a proxy that wants a user and a password."""


def why_unreached() -> str | None:
    """Return why the hub does not answer, and what to set, for the middle of a message; None if it answers.

    The hub has the seconds of HF_HUB_ETAG_TIMEOUT for it, the look-up of its name included: its client alone would try
    several times.
    """
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return OFFLINE
    seconds = constants.HF_HUB_ETAG_TIMEOUT

    def ask() -> Any:
        return get_session().head(constants.ENDPOINT, timeout=seconds)

    try:
        answer = in_thread(ask, "whiten-hub").result(seconds)  # the look-up of a name has no bound of its own
    except Exception as error:  # those of the HTTP library, which differs between versions of huggingface_hub
        answer = error
    return _why(answer, constants.ENDPOINT, seconds)


def _why(answer: Any, endpoint: str, seconds: float) -> str | None:
    """Return what an answer or an error says of the way to the hub; None for an answer of the hub."""
    host, (variable, proxy) = urlsplit(endpoint).netloc.rpartition("@")[2], _proxy(endpoint)
    name, reason = type(answer).__name__, one_line(answer) if isinstance(answer, Exception) else ""
    if getattr(answer, "status_code", None) == _LOGIN or (name == "ProxyError" and str(_LOGIN) in reason):
        return (
            f"{UNREACHED}: the proxy {proxy} before {host} wants a log-in ({_LOGIN}): set {variable} to "
            f"http://USER:PASSWORD@{proxy}"
        )
    if not isinstance(answer, Exception):
        return None
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return (
            f"{UNREACHED}: the certificate of {host} is not trusted ({reason}): set {_certificates()} to a file with "
            "the certificates of your network"
        )
    if isinstance(answer, TimeoutError) or "Timeout" in name:
        return f"{UNREACHED}: {host} has not answered in {seconds} s: set {_TIMEOUT} to more seconds"
    if proxy:
        return (
            f"{UNREACHED}: the proxy {proxy} before {host} does not work ({reason}): check {variable}, or name "
            f"{urlsplit(endpoint).hostname} in NO_PROXY"
        )
    return f"{UNREACHED}: {host} does not answer ({reason}): check the network and HF_ENDPOINT"


def _proxy(endpoint: str) -> tuple[str, str]:
    """Return the variable that names the proxy before an address, and its host and port, which are empty for none."""
    from urllib.request import getproxies, proxy_bypass  # takes 4 MB, which an encoder of a folder does not need

    address, proxies = urlsplit(endpoint), getproxies()
    kind = address.scheme if address.scheme in proxies else "all"
    proxy = "" if proxy_bypass(address.hostname or "") else proxies.get(kind, "")
    return f"{kind.upper()}_PROXY", urlsplit(proxy if "//" in proxy else f"//{proxy}").netloc.rpartition("@")[2]


def _certificates() -> str:
    """Return the variable that names a file of certificates, by the client's HTTP library."""
    from huggingface_hub import __version__

    return "SSL_CERT_FILE" if int(__version__.partition(".")[0]) else "REQUESTS_CA_BUNDLE"


def cached_folder(hub_id: str, revision: str | None) -> Path | None:
    """Return the directory that the cache has for a revision of a bundle, whole or not; None if it has no manifest."""
    from huggingface_hub import try_to_load_from_cache

    manifest = try_to_load_from_cache(hub_id, MANIFEST_FILE, revision=revision)
    return Path(manifest).parent if isinstance(manifest, str) else None


def damaged_files(folder: Path) -> tuple[str, ...]:
    """Return files of a bundle that are missing or have another size than its manifest says; or the manifest."""
    try:
        files = read_manifest(folder).files
    except BundleError:
        return (MANIFEST_FILE,)
    return tuple(name for name, record in files.items() if not _fits(folder / name, name, record))


def _fits(path: Path, name: str, record: FileRecord) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and (name in CLIENT_FILES or status.st_size == record.bytes)


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
        BundleError: the repository is not a bundle, or an incomplete one.
        WhitenError: the hub is needed and cannot be reached, or refuses.
    """
    with needing("hub"):
        import huggingface_hub  # noqa: F401
    hub_id, revision = repository.id, repository.revision
    with cache_errors():
        cached = None if refresh else cached_folder(hub_id, revision)
        damaged = damaged_files(cached) if cached else ()
    if cached is not None and not damaged:
        return cached
    lacks = f" (missing or damaged: {', '.join(damaged)})" if damaged else ""

    def absent(why: str) -> str:
        return (
            f"bundle '{hub_id}' does not exist as a directory, is not whole in the hub's cache{lacks}, and {why}; "
            "check the path, or copy the cache (HF_HOME) from a machine that has it"
        )

    if (why := why_unreached()) is not None:
        raise WhitenError(f"'{hub_id}' was not asked for: {why}" if refresh else absent(why))
    with hub_errors(hub_id, revision, absent(UNREACHED)):
        return _download(repository, cached)


def _download(repository: Repository, cached: Path | None) -> Path:
    """Download the bundle of a commit: that of the cache, or of the revision, which names it in the cache at the end.

    What is there and damaged is downloaded again.
    """
    from huggingface_hub import HfApi, snapshot_download

    def fetch(names: Iterable[str], revision: str | None, again: bool = False) -> Path:
        patterns, bar = list(map(glob.escape, names)), bar_of_terminals()
        return Path(
            snapshot_download(hub_id, revision=revision, allow_patterns=patterns, force_download=again, tqdm_class=bar)
        )

    hub_id, revision = repository.id, repository.revision
    commit = HfApi().model_info(hub_id, revision=revision).sha if cached is None else cached.name
    folder = fetch([MANIFEST_FILE], commit)
    if not (folder / MANIFEST_FILE).is_file():
        raise BundleError(f"'{hub_id}' is not a bundle: export it with whiten-export {hub_id}")
    if MANIFEST_FILE in damaged_files(folder):
        fetch([MANIFEST_FILE], commit, again=True)
    files = read_manifest(folder).files
    if present := [name for name in damaged_files(folder) if (folder / name).is_file()]:
        fetch(present, commit, again=True)
    fetch(files, commit)
    for name in damaged_files(folder):
        if (folder / name).is_file():
            raise BundleError(f"'{hub_id}': {name} has another size than its manifest says; push the bundle again")
        raise BundleError(f"'{hub_id}' lacks {name}, though its manifest lists it; push the bundle again")
    if cached is None:
        fetch([MANIFEST_FILE], revision)  # last: the branch names a whole bundle in the cache
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
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        FileMetadataError,
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
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        if isinstance(error.__cause__, FileMetadataError):
            raise WhitenError(
                f"{constants.ENDPOINT} does not say which commit '{hub_id}' has (its answers lack X-Repo-Commit); name "
                "another hub or mirror in HF_ENDPOINT"
            ) from None
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
