"""A directory that appears complete or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from whiten_runtime.errors import UsageError, WhitenError
from whiten_runtime.manifest import MANIFEST_FILE

_PARTIAL = ".partial-"


@contextmanager
def staged(target: Path, replace: bool) -> Iterator[Path]:
    """Yield a hidden directory beside `target`; rename it to `target` when the block ends without an error.

    The staging directory is locked while it is in use: what a killed process left behind is recognised by its free
    lock and removed by the next call for the same target.

    Args:
        target: the directory to make.
        replace: replace a bundle that is already there.

    Raises:
        UsageError: `target` exists and may not be replaced.
        WhitenError: the directory cannot be written, or the disk is full.
    """
    target = target.resolve()
    check_target(target, replace)
    stage = lock = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target)
        stage = Path(tempfile.mkdtemp(prefix=f".{target.name}{_PARTIAL}", dir=target.parent))
        stage.chmod(0o777 & ~_umask())
        lock = _lock(stage)
        yield stage
        _flush(stage)
        check_target(target, replace)  # another process may have been faster
        _publish(stage, target)
    except OSError as error:
        place = error.filename or target
        raise WhitenError(
            f"{place}: cannot be written ({error.strerror or error}); check space and permissions, or choose another "
            "--out"
        ) from error
    finally:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def check_target(target: Path, replace: bool) -> None:
    """Check that a bundle may be written to `target`.

    Raises:
        UsageError: something is there that may not be replaced.
    """
    if not target.exists() and not target.is_symlink():
        return
    if not (target / MANIFEST_FILE).is_file():
        if not (target.is_dir() and not any(target.iterdir())):
            raise UsageError(f"'{target}' exists and is not a bundle; choose another --out")
    elif not replace:
        raise UsageError(f"bundle '{target}' exists; replace it with --force, or choose another --out")


def _publish(stage: Path, target: Path) -> None:
    if target.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}{_PARTIAL}", dir=target.parent))
        target.rename(old)
        try:
            stage.rename(target)
        except OSError:
            old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)
    else:
        stage.rename(target)
    _sync(target.parent)


def _remove_abandoned(target: Path) -> None:
    for stage in target.parent.glob(f".{target.name}{_PARTIAL}*"):
        lock = _lock(stage)
        if lock is not None:
            shutil.rmtree(stage, ignore_errors=True)
            os.close(lock)


def _lock(directory: Path) -> int | None:
    """Descriptor of an exclusive lock on a directory; None if another process holds it."""
    try:
        import fcntl
    except ImportError:  # Windows has no directory locks: what a killed process left stays until deleted by hand
        return None
    descriptor = None
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    if descriptor is not None:
        os.close(descriptor)
    return None


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


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
