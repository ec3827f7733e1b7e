"""Lock files and directories, so that those of running processes can be told from those of killed ones."""

import os
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: what a killed process leaves stays until it is deleted by hand
    _LOCKS = False
else:
    _LOCKS = True


def lock(path: Path) -> int | None:
    """Return the descriptor of an exclusive lock on a file or directory; it is locked until that is closed."""
    if not _LOCKS:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    locked = False
    try:
        locked = lock_descriptor(descriptor)
    finally:
        if not locked:
            os.close(descriptor)
    return descriptor if locked else None


def lock_descriptor(descriptor: int) -> bool:
    """Lock an open file, and return whether the file system has locks."""
    if not _LOCKS:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def is_abandoned(path: Path) -> int | None:
    """Return the descriptor of a lock on what no process has locked; None if one has, or nobody can tell."""
    with suppress(BlockingIOError):
        return lock(path)
    return None
