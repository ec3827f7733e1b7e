"""Write a directory that appears complete or not at all."""

import errno
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from whiten_runtime.bundle.manifest import MANIFEST_FILE
from whiten_runtime.errors import UsageError, WhitenError

try:
    import fcntl
except ImportError:  # Windows: directories left by a killed process stay until they are deleted by hand
    _LOCKS = False
else:
    _LOCKS = True

_PARTIAL, _REPLACED = ".partial-", ".replaced-"

_CANNOT_WRITE = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO))


@dataclass(frozen=True)
class Kind:
    """Describes a kind of directory.

    Attributes:
        name: name of the kind, for messages.
        marker: file that every directory of the kind contains; directories without it are never replaced.
    """

    name: str
    marker: str


BUNDLE = Kind("bundle", MANIFEST_FILE)


@contextmanager
def staged(target: Path, replace: bool, kind: Kind = BUNDLE) -> Iterator[Path]:
    """Yield a hidden directory beside `target`; rename it to `target` when the block ends without an error.

    The staging directory is locked while it is in use. A directory that a killed process left behind is recognised by
    its free lock, and removed by the next call for the same target. A bundle that was being replaced when its process
    was killed is put back by the next call.

    Args:
        target: directory to create.
        replace: replace a directory that already exists.
        kind: kind of the directory.

    Raises:
        UsageError: `target` exists and may not be replaced.
        WhitenError: the directory cannot be written, or the disk is full.
    """
    target = target.resolve()
    stage, lock = _prepare(target, replace, kind)
    try:
        yield stage
        _flush(stage)
        _publish(stage, target, replace, kind)
    except OSError as error:
        if error.errno in _CANNOT_WRITE or Path(str(error.filename)).is_relative_to(target.parent):
            raise _cannot_write(error, target) from error
        raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def check_target(target: Path, replace: bool, kind: Kind = BUNDLE) -> None:
    """Check that a directory of a kind, by default a bundle, may be written to `target`.

    Raises:
        UsageError: `target` exists and may not be replaced.
    """
    if not target.exists() and not target.is_symlink():
        return
    if not (target / kind.marker).is_file():
        if not (target.is_dir() and not any(target.iterdir())):
            raise UsageError(f"'{target}' exists and is not a {kind.name}; choose another --out")
    elif not replace:
        raise UsageError(f"{kind.name} '{target}' exists; replace it with --force, or choose another --out")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock an existing directory for this process, where the system has locks.

    Raises:
        UsageError: another process has locked it.
    """
    lock = _lock(directory)
    if lock is None and _LOCKS:
        raise UsageError(f"'{directory}' is in use by another process; wait for it, or name another")
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _prepare(target: Path, replace: bool, kind: Kind) -> tuple[Path, int | None]:
    """Create and lock the staging directory; clean up after killed processes."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _recover(target)
        check_target(target, replace, kind)
        while True:
            stage = _unique(target, _PARTIAL)
            stage.mkdir()
            lock = _lock(stage)
            if (lock is not None or not _LOCKS) and stage.exists():
                return stage, lock
            if lock is not None:  # another process took it for abandoned before it was locked
                os.close(lock)
    except OSError as error:
        raise _cannot_write(error, target) from error


def _publish(stage: Path, target: Path, replace: bool, kind: Kind) -> None:
    old = None
    if replace and target.exists():
        old = _unique(target, _REPLACED)
        target.rename(old)
    try:
        stage.rename(target)
    except OSError:
        if old is not None:
            old.rename(target)
        check_target(target, replace, kind)  # another process may have been faster
        raise
    _sync(target.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _recover(target: Path) -> None:
    """Put back a bundle whose replacement was interrupted; remove directories that killed processes left."""
    for old in target.parent.glob(f".{glob.escape(target.name)}{_REPLACED}*"):
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(target)
    for stage in target.parent.glob(f".{glob.escape(target.name)}{_PARTIAL}*"):
        lock = _lock(stage)
        if lock is not None:
            shutil.rmtree(stage, ignore_errors=True)
            os.close(lock)


def _unique(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}{kind}{secrets.token_hex(4)}")


def _cannot_write(error: OSError, target: Path) -> WhitenError:
    return WhitenError(
        f"{error.filename or target}: cannot be written ({error.strerror or error}); check space and permissions, or "
        "choose another --out"
    )


def _lock(directory: Path) -> int | None:
    """Return the descriptor of an exclusive lock on a directory; None if another process has it, or without locks."""
    if not _LOCKS:
        return None
    descriptor = None
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    if descriptor is not None:
        os.close(descriptor)
    return None


def _flush(directory: Path) -> None:
    for path in directory.rglob("*"):
        _sync(path)
    _sync(directory)


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
