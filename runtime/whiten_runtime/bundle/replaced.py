"""Open a bundle again if it is replaced while it is being opened, as by `whiten-export --force` or a refit."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from whiten_runtime.bundle.manifest import MANIFEST_FILE
from whiten_runtime.errors import BundleError, WhitenError

ATTEMPTS = 10
"""Number of times that a bundle is opened at most. An export that replaces it takes seconds; opening one, less."""


class _Closable(Protocol):
    def close(self) -> None: ...


Opened = TypeVar("Opened", bound=_Closable)


def unmixed(path: Path, open_it: Callable[[], Opened]) -> Opened:
    """Return what a function opens, from one bundle alone: it is called again if the bundle was replaced meanwhile.

    Args:
        path: the bundle's directory.
        open_it: function that opens the bundle.

    Raises:
        BundleError: the bundle was replaced during each of `ATTEMPTS` attempts.
        WhitenError: what the function raised though the bundle was not replaced.
    """
    why: WhitenError | OSError | None = None
    for _ in range(ATTEMPTS):
        before = identity(path)
        try:
            found = open_it()
        except (WhitenError, OSError) as error:
            if identity(path).is_of(before):
                raise
            why = error
            continue
        if identity(path).is_of(before):
            return found
        found.close()
    raise BundleError(
        f"{path}: was replaced during each of {ATTEMPTS} attempts to open it; open it when its export is done"
    ) from why


@dataclass(frozen=True)
class Identity:
    """Tells a bundle from one that has its path at another time.

    Attributes:
        fixed: numbers that change when the directory, its manifest, or a link on the way there is replaced.
        renamed: time of the last change of the directory: it was renamed, or a file was made in it.
        beside: time of the last change of the directory that it is in: a name there has changed, which may be its own.
    """

    fixed: tuple[tuple[int, ...] | None, ...]
    renamed: int
    beside: int

    def is_of(self, before: "Identity") -> bool:
        """Return whether a bundle is the one that it was before, and has been at its path all the time.

        A directory that was renamed away and back has other times, and so has the one that it is in. A file that is
        made in the directory changes its own time alone.
        """
        stayed = self.renamed == before.renamed or self.beside == before.beside
        return stayed and self.fixed == before.fixed


def identity(path: Path) -> Identity:
    """Return what tells the bundle in a directory from another, or from none."""
    links = [place.absolute() for place in (path, *path.absolute().parents) if place.is_symlink()]
    directory = _status(path)
    fixed = (
        directory and (directory.st_dev, directory.st_ino),
        _numbers(_status(path / MANIFEST_FILE)),
        *(_numbers(_status(link, False)) for link in links),
    )
    around = _status(path / "..")
    return Identity(fixed, directory.st_ctime_ns if directory else 0, around.st_mtime_ns if around else 0)


def _numbers(status: os.stat_result | None) -> tuple[int, ...] | None:
    return status and (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _status(path: Path, follow: bool = True) -> os.stat_result | None:
    try:
        return path.stat(follow_symlinks=follow)
    except (OSError, ValueError):
        return None
