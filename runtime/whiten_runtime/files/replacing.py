"""Replace a file as a whole: readers see the old content or the new one, whatever ends the process that writes it."""

import errno
import glob
import io
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO

from whiten_runtime.errors import CANNOT_WRITE, UsageError, WhitenError, kind_of_place, one_line

PARTIAL = ".partial-"
"""Ending of the name of the hidden file that will replace a file."""


def cannot_write(error: OSError, path: Path, elsewhere: str = "another place") -> WhitenError:
    reason = error.strerror or one_line(error) or type(error).__name__
    return WhitenError(f"{path}: cannot be written ({reason}); check space and permissions, or name {elsewhere}")


@contextmanager
def written_as(path: Path, elsewhere: str = "another place") -> Iterator[None]:
    """Turn errors of the system in a block that does nothing but write `path` into one that names `path`."""
    try:
        yield
    except OSError as error:
        raise cannot_write(error, path, elsewhere) from error


@contextmanager
def filling(folder: Path, path: Path, elsewhere: str = "another place") -> Iterator[None]:
    """Turn errors of the system that concern files of `folder`, which becomes `path`, into one that names `path`.

    The block may do anything: errors of other files, of the network and of memory stay as they are.
    """
    try:
        yield
    except OSError as error:
        if not _concerns(error, folder):
            raise
        raise cannot_write(error, path, elsewhere) from error


_NUMPY_SHORT = re.compile(r"\d+ requested and \d+ written")
"""Matches what numpy says, without the system's number, where an array could not be written whole."""


def _concerns(error: OSError, folder: Path) -> bool:
    """Return whether an error names a file of a folder; or no file, and is one that only writing gives."""
    if not isinstance(error.filename, str | bytes):
        return error.errno in CANNOT_WRITE or _NUMPY_SHORT.fullmatch(str(error)) is not None
    if isinstance(error, FileNotFoundError):  # of a file that was to be read
        return False
    return Path(os.fsdecode(error.filename)).absolute().is_relative_to(folder.absolute())


class Written(io.FileIO):
    """Writes a file; errors of the system say that `path` cannot be written."""

    def __init__(self, file: Path | int, mode: str, path: Path, elsewhere: str) -> None:
        super().__init__(file, mode)
        self._errors = partial(written_as, path, elsewhere)

    def write(self, content: Any) -> int:
        with self._errors():
            return super().write(content)


_NOT_FLUSHABLE = frozenset((errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES))
"""Errors of flushing a directory that say that it cannot be done, and nothing of the disk."""


@contextmanager
def replacing(path: Path, elsewhere: str = "another place") -> Iterator[BinaryIO]:
    """Open a hidden file beside `path`, which replaces it when the block ends without an error.

    The file is flushed to disk before it gets its name, and its directory afterwards. It has the mode and group of the
    file that it replaces.
    """
    with hidden_file(path, elsewhere) as (file, publish):
        yield file
        publish()


@contextmanager
def hidden_file(
    path: Path, elsewhere: str = "another place", named: Path | None = None
) -> Iterator[tuple[BinaryIO, Callable[[], None]]]:
    """Open a hidden file beside `path`; yield it, and the function that flushes it and renames it to `path`.

    It is deleted when the block ends, if it has its name still. It is locked while it is open: those that killed
    processes left are recognised by their free locks, and deleted. Errors of writing name `named`, by default `path`.
    """
    target, named = path.resolve(), named or path

    def publish() -> None:
        with written_as(named, elsewhere):
            _publish(file, temporary, target)

    with written_as(named, elsewhere):
        delete_abandoned(target.parent, glob.escape(target.name))
        raw, temporary = _open(target, named, elsewhere)
    try:
        with io.BufferedWriter(raw) as file:
            yield file, publish
    finally:
        with suppress(OSError):
            temporary.unlink()


def replace_file(path: Path, content: bytes, elsewhere: str = "another place", named: Path | None = None) -> None:
    """Write a file, and flush it to disk before it replaces an earlier one."""
    with hidden_file(path, elsewhere, named) as (file, publish):
        file.write(content)
        publish()


def _publish(file: BinaryIO, temporary: Path, target: Path) -> None:
    """Flush an open file to disk, and rename it while it is still locked; flush its directory."""
    flush(file)
    if sys.platform == "win32":  # open files cannot be renamed there
        file.close()
    temporary.replace(target)
    sync_folder(target.parent)


def delete_abandoned(folder: Path, names: str) -> None:
    """Delete hidden files that killed processes left, of names of a pattern: those that no process has locked."""
    for path in folder.glob(f".{names}{PARTIAL}*"):
        with suppress(OSError), path.open("rb") as file:
            if lock_file(file):
                path.unlink()


def flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the names in a directory to disk, where the system can; some file systems of networks cannot."""
    if sys.platform == "win32":
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


def _open(target: Path, named: Path, elsewhere: str) -> tuple[Written, Path]:
    while True:
        temporary = target.with_name(f".{target.name}{PARTIAL}{secrets.token_hex(4)}")
        file = Written(temporary, "xb", named, elsewhere)
        with suppress(BlockingIOError):  # another process has locked it first, to delete it
            if not lock_file(file) or temporary.exists():
                _take_permissions(file.fileno(), target)
                return file, temporary
        file.close()


def _take_permissions(descriptor: int, target: Path) -> None:
    """Give an open file the mode and group of the file that it will replace, if there is one.

    Where the group cannot be given, its members get no access: they are others than before.
    """
    if sys.platform == "win32" or not target.exists():
        return
    status = target.stat()
    mode = stat.S_IMODE(status.st_mode)
    if os.fstat(descriptor).st_gid != status.st_gid:
        try:
            os.fchown(descriptor, -1, status.st_gid)
        except OSError:
            mode &= ~stat.S_IRWXG
    with suppress(OSError):  # file systems without modes
        os.fchmod(descriptor, mode)


def lock_file(file: IO[bytes] | io.FileIO | int) -> bool:
    """Lock an open file or directory until it is closed, and return whether system and file system have locks.

    Raises:
        BlockingIOError: another process has locked it.
    """
    if sys.platform == "win32":  # what a killed process leaves stays until it is deleted by hand
        return False
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def check_replaceable(path: Path, elsewhere: str) -> None:
    """Check that there is nothing but a regular file at a path, or nothing."""
    kind = kind_of_place(path)
    if kind == "directory":
        raise UsageError(f"'{path}' is a directory; name a file in it")
    if kind == "other":
        raise UsageError(f"'{path}' is not a regular file; choose {elsewhere}")


def check_file_place(path: Path, elsewhere: str = "another place") -> None:
    check_replaceable(path, elsewhere)
    with hidden_file(path, elsewhere):
        pass


def check_folder_place(folder: Path, elsewhere: str = "another place") -> None:
    """Check that the folder can be created, or replaced if it exists.

    Directories above it that do not exist are not created: the nearest one that does is tried.
    """
    kind_of_place(folder)  # refuses what cannot be looked up
    place = folder.resolve()
    nearest = next(parent for parent in (place, *place.parents) if kind_of_place(parent) is not None)
    if kind_of_place(nearest) != "directory":
        raise UsageError(f"'{nearest}' is not a directory, so '{folder}' cannot be written; choose {elsewhere}")
    holder = place.parent if nearest == place else nearest
    trial = holder / f".{place.name}{PARTIAL}{secrets.token_hex(4)}"
    try:
        trial.mkdir()
    except OSError as error:
        raise cannot_write(error, folder, elsewhere) from error
    with suppress(OSError):
        trial.rmdir()
