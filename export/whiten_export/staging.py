"""Write a directory that appears complete or not at all: made beside its place, and renamed when it is whole."""

import ctypes
import errno
import glob
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from whiten_runtime.bundle.manifest import MANIFEST_FILE
from whiten_runtime.errors import UsageError
from whiten_runtime.files.replacing import (
    PARTIAL,
    check_folder_place,
    filling,
    flush,
    lock_file,
    sync_folder,
    written_as,
)
from whiten_runtime.reporter import Reporter

ELSEWHERE = "another --out"


@dataclass(frozen=True)
class Kind:
    name: str  # name of the kind, for messages
    marker: str  # file that every directory of the kind contains; directories without it are never replaced


BUNDLE = Kind("bundle", MANIFEST_FILE)


@contextmanager
def staged(target: Path, replace: bool, kind: Kind = BUNDLE, report: Reporter | None = None) -> Iterator[Path]:
    """Yield a hidden directory beside `target`, which gets its name when the block ends without an error.

    The directory is locked meanwhile: those that killed processes left are known by their free locks. They are removed
    first, and `report` names them; a bundle that a killed process was about to replace gets its name back.
    """
    named, target = target, target.resolve()
    with written_as(named, ELSEWHERE):
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target, report or Reporter())
        _check_target(target, replace, kind)
        stage, lock = _locked_folder(target)
    try:
        with filling(stage, named, ELSEWHERE):
            yield stage
        with written_as(named, ELSEWHERE):
            _flush(stage)
            _publish(stage, target, replace, kind)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def check_place(target: Path, replace: bool, kind: Kind = BUNDLE) -> None:
    """Check, before any work, that a directory of a kind, by default a bundle, can be written to `target`."""
    _check_target(target, replace, kind)
    check_folder_place(target, ELSEWHERE)


def _check_target(target: Path, replace: bool, kind: Kind) -> None:
    _restore_replaced(target.resolve(), kind)
    if _holds_kind(target, target, kind) and not replace:
        raise _exists(target, kind)


def _holds_kind(path: Path, target: Path, kind: Kind) -> bool:
    """Return whether a directory of the kind is at `path`; refuse anything else, named `target`, but an empty one."""
    try:
        names = [entry.name for entry in path.iterdir()]  # one look: it may be replaced meanwhile
    except FileNotFoundError:
        return False
    except NotADirectoryError:  # of the path itself, or of one that leads there
        names = [path.name] if os.path.lexists(path) else []
    if names and kind.marker not in names:
        raise UsageError(f"'{target}' exists and is not a {kind.name}; choose another --out")
    return bool(names)


def _exists(target: Path, kind: Kind) -> UsageError:
    return UsageError(
        f"{kind.name} '{target}' exists; replace it with --force (replace=True in Python), or choose another --out"
    )


def _publish(stage: Path, target: Path, replace: bool, kind: Kind) -> None:
    """Give the new directory its name, in exchange for that of the old one; of several processes, one wins."""
    while not (replace and _exchange(stage, target, kind)):
        old = _beside(target, _REPLACED)
        if replace:
            with suppress(FileNotFoundError):
                target.rename(old)
        try:
            _holds_kind(old, target, kind)  # checked under its hidden name, which no other process replaces
            with suppress(OSError):  # an empty directory, to which Windows renames nothing
                target.rmdir()
            stage.rename(target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                _put_back(old, target)
                raise
            if not replace:
                raise _exists(target, kind) from None
            _discard(old, target)  # another process was faster: its directory is replaced next
        except UsageError:
            _put_back(old, target)
            raise
        else:
            _discard(old, target)
            break
    sync_folder(target.parent)


def _put_back(old: Path, target: Path) -> None:
    if os.path.lexists(old) and not os.path.lexists(target):
        old.rename(target)


def _discard(old: Path, target: Path) -> None:
    """Remove a directory that was replaced; killed meanwhile, it is one that the next writer removes."""
    with suppress(OSError):
        shutil.rmtree(old.rename(_beside(target, PARTIAL)), ignore_errors=True)


def _exchange(stage: Path, target: Path, kind: Kind) -> bool:
    """Exchange the names of the new directory and the old one, and return whether the system did that.

    At no moment is there no directory under the name.
    """
    if not (_holds_kind(target, target, kind) and _exchange_names(stage, target)):
        return False
    try:
        _holds_kind(stage, target, kind)  # what had the name until now
    except UsageError:
        _exchange_names(stage, target)
        raise
    return True


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def _exchange_names(first: Path, second: Path) -> bool:
    """Let two paths exchange what they name, at once, and return whether the system and the file system can."""
    call = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    names = os.fsencode(first), os.fsencode(second)
    return call is not None and call(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0


_REPLACED = ".replaced-"
"""Ending of the hidden name of a whole directory while another gets its place, by two renames."""


def _beside(target: Path, mark: str) -> Path:
    return target.with_name(f".{target.name}{mark}{secrets.token_hex(4)}")


def _all_beside(target: Path, mark: str) -> list[Path]:
    return sorted(target.parent.glob(f".{glob.escape(target.name)}{mark}*"))


def _locked_folder(target: Path) -> tuple[Path, int | None]:
    """Create and lock a hidden directory; return its path, and the descriptor of `_lock`."""
    while True:
        stage = _beside(target, PARTIAL)
        stage.mkdir()
        with suppress(BlockingIOError, FileNotFoundError):  # another process took it for one that was left
            lock = _lock(stage)
            if stage.exists():
                return stage, lock
            if lock is not None:
                os.close(lock)


def _lock(folder: Path) -> int | None:
    """Lock a directory until the descriptor that is returned is closed; None where there are no locks.

    Raises:
        BlockingIOError: another process has locked it.
        OSError: it cannot be opened.
    """
    if sys.platform == "win32":
        return None
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if lock_file(descriptor):
            return descriptor
    except BlockingIOError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _remove_abandoned(target: Path, report: Reporter) -> None:
    """Remove the directories that killed processes left beside `target`: those that no process has locked."""
    for folder in _all_beside(target, PARTIAL):
        with suppress(OSError):  # a process that runs has it, or removes it at the same time
            if (lock := _lock(folder)) is None:
                continue
            try:
                size = sum(file.lstat().st_size for file in folder.rglob("*"))
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
            report.stage(f"removed {folder}, which a killed process left ({size / 1e6:,.1f} MB)")


def _restore_replaced(target: Path, kind: Kind) -> None:
    """Give its name back to a directory that a killed process had renamed, to put another in its place."""
    for folder in _all_beside(target, _REPLACED):
        if not os.path.lexists(target):
            with suppress(OSError):  # another process is faster
                folder.rename(target)
        elif (folder / kind.marker).exists():
            _discard(folder, target)


def _flush(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("r+b") as file:  # Windows flushes only files that may be written
                flush(file)
    sync_folder(directory)
