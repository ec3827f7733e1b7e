"""Find the files below a directory."""

from collections.abc import Iterator
from pathlib import Path


def files_below(folder: Path, hidden: tuple[str, ...]) -> Iterator[Path]:
    """Yield the paths of the files below a directory, in no order.

    Directories whose names begin with one of `hidden` are left out. Links to directories are followed, but not to one
    that they lie in.

    Raises:
        OSError: a directory may not be read.
    """
    left = [(folder, frozenset[tuple[int, int]]())]
    while left:
        top, above = left.pop()
        status = top.stat()
        here = (status.st_dev, status.st_ino)
        if here in above:
            continue
        for path in top.iterdir():
            if not path.is_dir():
                yield path
            elif not path.name.startswith(hidden):
                left.append((path, above | {here}))
