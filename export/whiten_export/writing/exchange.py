"""Exchange two directories in one step, where the system can: at no moment is there nothing under either name."""

import ctypes
import errno
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
"""Flag of renameat2(2) of Linux, since 3.15."""
_RENAME_SWAP = 2
"""Flag of renamex_np(2) of macOS, since 10.12."""

_CANNOT = frozenset((errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM))
"""Errors of systems and file systems that cannot exchange, and of sandboxes that do not know the call."""


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two files or directories of one file system in one step."""
    call = _call()
    if call is None:
        return False
    ctypes.set_errno(0)
    if call(os.fsencode(first), os.fsencode(second)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(first), None, str(second))


@cache
def _call() -> Any:
    """Return a function of two names; None where the C library has none."""
    if os.name == "nt":
        return None
    library = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin":
        swap = getattr(library, "renamex_np", None)
        return None if swap is None else lambda first, second: swap(first, second, _RENAME_SWAP)
    renameat2 = getattr(library, "renameat2", None)
    if renameat2 is None:
        return None
    return lambda first, second: renameat2(_AT_FDCWD, first, _AT_FDCWD, second, _RENAME_EXCHANGE)
