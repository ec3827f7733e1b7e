"""Look for the bundles of a repository in the hub's cache, without the network."""

import re
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from whiten_runtime.bundle.bundle import CLIENT_FILES
from whiten_runtime.bundle.manifest import MANIFEST_FILE, read_manifest
from whiten_runtime.bundle.records import FileRecord
from whiten_runtime.errors import BundleError

MAIN = "main"
"""Branch of a repository that is meant where none is named."""

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class CachedBundle:
    folder: Path  # its directory, named by the commit
    damaged: tuple[str, ...]  # files that are missing, or have another size than the manifest says


def cached_bundle(hub_id: str, revision: str | None) -> CachedBundle | None:
    """Return the bundle of a revision, whole or not; None if the cache has no manifest of it."""
    commit = commit_of(hub_id, revision)
    folder = None if commit is None else _repository(hub_id) / "snapshots" / commit
    if folder is None or not (folder / MANIFEST_FILE).is_file():
        return None
    return CachedBundle(folder, damaged_files(folder))


def commit_of(hub_id: str, revision: str | None) -> str | None:
    """Return the commit that a revision names in the cache; None if the cache does not say it."""
    try:
        name = _ref(hub_id, revision).read_text("utf-8").strip()  # a copy may have an end of line
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, UnicodeDecodeError):
        name = revision or MAIN
    return name if _COMMIT.fullmatch(name) else None


def set_commit(hub_id: str, revision: str | None, commit: str) -> None:
    """Let a revision name a commit in the cache, as the hub's client does."""
    if commit_of(hub_id, revision) == commit:
        return
    path = _ref(hub_id, revision)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".ref-", dir=_repository(hub_id)) as folder:
        (Path(folder) / "commit").write_text(commit, "utf-8")
        (Path(folder) / "commit").replace(path)  # whole, for processes that read it meanwhile


def whole_commits(hub_id: str) -> list[Path]:
    """Return the directories of whole bundles, sorted, that no other branch or tag of the cache names."""
    repository = _repository(hub_id)
    refs = [path for path in (repository / "refs").rglob("*") if path.is_file() and path != _ref(hub_id, None)]
    others = {commit_of(hub_id, path.relative_to(repository / "refs").as_posix()) for path in refs}
    folders = sorted((repository / "snapshots").glob("*"))
    return [folder for folder in folders if folder.name not in others and not damaged_files(folder)]


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


def _ref(hub_id: str, revision: str | None) -> Path:
    return _repository(hub_id) / "refs" / (revision or MAIN)


def _repository(hub_id: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{hub_id.replace('/', '--')}"
