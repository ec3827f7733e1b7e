"""Count the calls by which this process changes files below a folder, and end the process, or fail, at one of them.

Python's own functions are replaced, so this is for a child that does nothing else afterwards. Files that other
languages write by themselves are not seen; whiten writes none.
"""

import builtins
import fcntl
import io
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Faults:
    """Counts calls below a folder.

    Attributes:
        folder: folder that is watched.
        at: number of the call that fails, from 1; 0 for none.
        error: number of the error with which it fails; None to kill the process.
        lasting: whether all later calls that could meet the error fail too, as on a full disk.
        calls: names of the calls so far, with the file's name.
    """

    folder: Path
    at: int = 0
    error: int | None = None
    lasting: bool = False
    calls: list[str] = field(default_factory=list)

    def point(self, name: str, *places: object, fails: bool = True, directory: int | None = None) -> None:
        """Count a call, which `fails` says may fail, and let it meet its fate."""
        watched = [path for place in places if (path := self._below(place, directory)) is not None]
        if not watched:
            return
        self.calls.append(f"{name} {watched[-1]}")
        later = self.lasting and self.error is not None and 0 < self.at < len(self.calls)
        if len(self.calls) != self.at and not later:
            return
        if self.error is None:
            os.kill(os.getpid(), signal.SIGKILL)
        elif fails:
            named = [] if name in _WITHOUT_A_NAME else [str(self.folder / watched[0])]
            raise OSError(self.error, os.strerror(self.error), *named)

    def install(self) -> None:
        """Replace the functions of this process."""
        for name, count in _NAMED.items():
            self._replace(os, name, count)
        for module, name in (
            (os, "fsync"),
            (os, "ftruncate"),
            (os, "posix_fallocate"),
            (os, "fdopen"),
            (os, "sendfile"),
        ):
            if name != "fdopen":
                self._replace(module, name, 1)
        self._replace(fcntl, "flock", 1)
        opener = os.open

        def open_descriptor(path: Any, flags: int, *rest: Any, dir_fd: int | None = None, **more: Any) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.point("open", path, directory=dir_fd)
            return opener(path, flags, *rest, dir_fd=dir_fd, **more)

        os.open = open_descriptor
        plain, faults = io.open, self

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                content = memoryview(data).cast("B")
                try:
                    faults.point("write", self.fileno())
                except OSError:
                    super().write(content[: len(content) // 2])
                    raise
                if len(faults.calls) + 1 == faults.at and faults.error is None and len(content) > 1:
                    super().write(content[: len(content) // 2])
                    faults.point("half a write", self.fileno())
                    return len(content) // 2 + super().write(content[len(content) // 2 :])
                return int(super().write(content))

            def truncate(self, size: int | None = None) -> int:
                faults.point("truncate", self.fileno())
                return super().truncate(size)

        def open_file(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **more: Any) -> Any:
            writes = set(mode) & set("wxa+")
            if not writes or faults._below(file, None) is None:
                return plain(file, mode, buffering, *rest, **more)
            if not isinstance(file, int):
                faults.point("open", file)
            raw = File(
                file, mode.replace("b", "").replace("t", ""), more.pop("closefd", True), more.pop("opener", None)
            )
            if buffering == 0:
                return raw
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, *rest, **more)

        io.open = open_file
        builtins.open = open_file

    def _replace(self, module: Any, name: str, count: int) -> None:
        original: Callable[..., Any] = getattr(module, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            self.point(name, *arguments[:count], directory=named.get("dir_fd"))
            return original(*arguments, **named)

        setattr(module, name, counted)

    def _below(self, place: Any, directory: int | None) -> str | None:
        """Return a file's path below the folder; None if it is elsewhere."""
        try:
            if isinstance(place, int):
                path = Path(f"/proc/self/fd/{place}").readlink()
            else:
                path = Path(os.fsdecode(place))
                if directory is not None:
                    path = Path(f"/proc/self/fd/{directory}").readlink() / path
        except (OSError, TypeError):
            return None
        path = Path(os.path.normpath(path.absolute()))
        return str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) and path != self.folder else None


_NAMED = {"replace": 2, "rename": 2, "unlink": 1, "remove": 1, "rmdir": 1, "mkdir": 1, "link": 2, "symlink": 2}
"""Functions of os, with the number of their arguments that name files."""

_WITHOUT_A_NAME = frozenset(
    ("write", "half a write", "truncate", "fsync", "ftruncate", "posix_fallocate", "flock", "sendfile")
)
