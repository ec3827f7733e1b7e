"""Replace a file as a whole: readers see the old content or the new one, whatever ends the process that writes it."""

import errno
import glob
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from whiten_runtime.files.locks import is_abandoned, lock_descriptor
from whiten_runtime.files.writable import PARTIAL, written_as

_NOT_FLUSHABLE = frozenset((errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES))
"""Errors of flushing a directory that say that it cannot be done, and nothing of the disk."""


@contextmanager
def replacing(path: Path, elsewhere: str = "another place") -> Iterator[BinaryIO]:
    """Open a hidden file beside `path`, which replaces it when the block ends without an error.

    The file is flushed to disk before it gets its name, and its directory afterwards.
    """
    with hidden_file(path, elsewhere) as (file, temporary):
        yield file
        publish(file, temporary, path.resolve())


@contextmanager
def hidden_file(
    path: Path, elsewhere: str = "another place", named: Path | None = None
) -> Iterator[tuple[BinaryIO, Path]]:
    """Open a hidden file beside `path`, to be given to `publish`; delete it when the block ends.

    It is locked while it is open: those that killed processes left are recognised by their free locks, and deleted.
    """
    target = path.resolve()
    with written_as(named or path, elsewhere):
        delete_abandoned(target)
        file, temporary = _open(target)
        try:
            with file:
                yield file, temporary
        finally:
            with suppress(OSError):
                temporary.unlink()


def replace_file(path: Path, content: bytes, elsewhere: str = "another place", named: Path | None = None) -> None:
    """Write a file, and flush it to disk before it replaces an earlier one."""
    with hidden_file(path, elsewhere, named) as (file, temporary):
        file.write(content)
        publish(file, temporary, path.resolve())


def publish(file: BinaryIO, temporary: Path, target: Path) -> None:
    """Flush an open file to disk, and rename it while it is still locked; flush its directory."""
    flush(file)
    if os.name == "nt":  # open files cannot be renamed there
        file.close()
    temporary.replace(target)
    sync_folder(target.parent)


def publish_new(file: BinaryIO, temporary: Path, target: Path) -> bool:
    """Flush an open file to disk, and give it its name unless another file has it; return whether it got it.

    Of several processes that do so at once, one gets the name. Where a file system has no links, the last does.
    """
    flush(file)
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError:
        publish(file, temporary, target)
        return True
    sync_folder(target.parent)
    return True


def delete_abandoned(target: Path) -> None:
    """Delete hidden files that killed processes left beside a file."""
    for found in target.parent.glob(f".{glob.escape(target.name)}{PARTIAL}*"):
        if found.is_file() and (lock := is_abandoned(found)) is not None:
            with suppress(OSError):
                found.unlink()
            os.close(lock)


def is_partial_of(path: Path, target: Path) -> bool:
    """Return whether a path is that of a hidden file which will replace `target`, or which a killed process left."""
    named = re.fullmatch(rf"\.{re.escape(target.name)}{re.escape(PARTIAL)}[0-9a-f]{{8}}", path.name) is not None
    return named and path.is_file() and not path.is_symlink() and path.parent.resolve() == target.parent.resolve()


def flush(file: BinaryIO) -> None:
    """Flush an open file to disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the names in a directory to disk, where the system can; some file systems of networks cannot."""
    if os.name == "nt":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NOT_FLUSHABLE:
            raise


def _open(target: Path) -> tuple[BinaryIO, Path]:
    """Create and lock a hidden file."""
    while True:
        temporary = target.with_name(f".{target.name}{PARTIAL}{secrets.token_hex(4)}")
        file = temporary.open("xb")
        with suppress(BlockingIOError):  # another process has locked it first, to delete it
            locked = lock_descriptor(file.fileno())
            if not locked or temporary.exists():
                return file, temporary
        file.close()
