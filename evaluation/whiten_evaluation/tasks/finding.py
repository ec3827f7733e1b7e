"""Find the files in a directory and its subdirectories."""

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(directory: Path) -> Iterator[Path]:
    """Yield all files outside hidden folders, shallow ones first, in an order independent of the file system."""
    found: list[Path] = []
    for folder, folders, names in os.walk(directory, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found.extend(Path(folder, name) for name in names)
    yield from sorted(found, key=lambda path: (len(path.parts), str(path)))
