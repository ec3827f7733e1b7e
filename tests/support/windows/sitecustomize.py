"""Let a process on Linux find files as a process on Windows does: on PYTHONPATH, for the processes that tests start.

A file that is opened for reading cannot be flushed, one that is open or mapped can be neither renamed nor removed, a
directory cannot be renamed over an empty one, and no two can exchange their names. What fails is written to the file
that WINDOWS_FAULTS names: a program may pass over the error.
"""
# ruff: noqa: PTH100, PTH112, PTH113, PTH115, PTH123

import errno
import fcntl
import os
import stat
import sys
from pathlib import Path

_LOCKED_ONLY_ELSEWHERE = ".partial-"
"""Mark of hidden files that are renamed and deleted while they are locked, where the system has locks."""


def _fail(number: int, what: str, path: object) -> None:
    caller = sys._getframe(2)
    with Path(os.environ["WINDOWS_FAULTS"]).open("a") as file:
        print(what, path, f"{caller.f_code.co_filename}:{caller.f_lineno}", file=file)
    raise OSError(number, os.strerror(number), str(path))


def _flush(descriptor: int, _real: object = os.fsync) -> None:
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    writes = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    if not writes and not stat.S_ISDIR(os.fstat(number).st_mode):
        _fail(errno.EBADF, "flushed", os.readlink(f"/proc/self/fd/{number}"))
    _real(number)  # type: ignore[operator]


def _used(path: str) -> bool:
    """Return whether this process has a file open or mapped that is at a path or below it."""
    used = set()
    for link in os.scandir("/proc/self/fd"):
        try:
            used.add(os.readlink(link.path))
        except OSError:  # the one that lists them
            continue
    with open("/proc/self/maps") as maps:
        used |= {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/" in line}
    return any((one == path or one.startswith(f"{path}/")) and not os.path.isdir(one) for one in used)


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event == "ctypes.dlsym" and arguments[1] == "renameat2":
        raise AttributeError(arguments[1])
    below = isinstance(arguments[-1], int) and arguments[-1] >= 0  # of a tree whose removal was audited
    if below or event not in ("os.remove", "os.rename", "shutil.rmtree"):
        return
    paths = [os.path.abspath(os.fsdecode(path)) for path in arguments[: 2 if event == "os.rename" else 1]]  # type: ignore[arg-type]
    for path in paths:
        if _used(path) and not (os.path.isfile(path) and _LOCKED_ONLY_ELSEWHERE in path):
            _fail(errno.EACCES, event, path)
    if event == "os.rename" and os.path.isdir(paths[0]) and os.path.isdir(paths[1]):
        _fail(errno.EEXIST, event, paths[1])


if "WINDOWS_FAULTS" in os.environ:
    os.fsync = _flush
    sys.addaudithook(_audit)
