"""Files in a directory and the folders in it."""

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(directory: Path) -> Iterator[Path]:
    """All files, the shallow ones first, in an order that does not depend on the file system; not in hidden folders."""
    found: list[Path] = []
    for folder, folders, names in os.walk(directory, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found.extend(Path(folder, name) for name in names)
    yield from sorted(found, key=lambda path: (len(path.parts), str(path)))
