"""Say in one line why a file or folder cannot be written, by the name that the user gave, and what to do."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from whiten_runtime.errors import WhitenError

_SPACE = frozenset((errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)))
_PERMISSION = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))

PARTIAL = ".partial-"
"""What follows the name of a file in the name of the hidden file that will replace it."""

CANNOT_WRITE = _SPACE | frozenset((errno.EFBIG, errno.EROFS, errno.EIO))
"""Errors that only writing gives, whether or not they name a file."""


def cannot_write(error: OSError, path: Path, elsewhere: str = "another place") -> WhitenError:
    """Return the error that says why `path` cannot be written, and what to do."""
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    return WhitenError(f"{path}: cannot be written ({reason}); {_advice(error.errno)}, or name {elsewhere}")


@contextmanager
def written_as(path: Path, elsewhere: str = "another place") -> Iterator[None]:
    """Turn errors of the system in a block that writes `path` into one that names `path`.

    Those of files in other directories, which the block reads, stay as they are.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if not _concerns(error, path):
            raise
        raise cannot_write(error, path, elsewhere) from error


def _concerns(error: OSError, path: Path) -> bool:
    if error.filename is None or error.errno in CANNOT_WRITE:
        return True
    named = Path(os.fsdecode(error.filename)).absolute()
    beside = {path.absolute().parent, path.resolve().parent}
    return not beside.isdisjoint(named.parents) or any(named in place.parents for place in (path.absolute(), *beside))


def _advice(number: int | None) -> str:
    if number in _SPACE:
        return "free some space"
    if number == errno.EFBIG:
        return "raise the limit of file sizes (ulimit -f)"
    if number in _PERMISSION:
        return "change its permissions"
    if number == errno.EIO:
        return "check the disk"
    return "check space and permissions"
