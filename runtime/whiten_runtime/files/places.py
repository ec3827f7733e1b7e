"""Check before long work that a file or folder can be written, by creating and deleting a hidden one in its place."""

import secrets
from contextlib import suppress
from pathlib import Path

from whiten_runtime.errors import UsageError
from whiten_runtime.files.replacing import hidden_file
from whiten_runtime.files.writable import PARTIAL, cannot_write


def check_file_place(path: Path, elsewhere: str = "another place") -> None:
    """Check that the file `path` can be written."""
    if path.is_dir():
        raise UsageError(f"'{path}' is a directory; name a file in it")
    with hidden_file(path, elsewhere):
        pass


def check_folder_place(folder: Path, elsewhere: str = "another place") -> None:
    """Check that the folder can be created, or replaced if it exists.

    Directories above it that do not exist are not created: the nearest one that does is tried.
    """
    place = folder.resolve()
    nearest = next(found for found in (place, *place.parents) if found.exists())
    if not nearest.is_dir():
        raise UsageError(f"'{nearest}' is not a directory, so '{folder}' cannot be written; choose {elsewhere}")
    holder = place.parent if nearest == place else nearest
    trial = holder / f".{place.name}{PARTIAL}{secrets.token_hex(4)}"
    try:
        trial.mkdir()
    except OSError as error:
        raise cannot_write(error, folder, elsewhere) from error
    with suppress(OSError):
        trial.rmdir()
