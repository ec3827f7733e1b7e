"""Write files of results: each appears complete or not at all."""

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from whiten_runtime.errors import UsageError, WhitenError


def check_writable(folder: Path, option: str) -> None:
    """Check that files can be written into a folder, or that it can be created, before a long computation.

    Args:
        folder: the folder.
        option: option that names it, for the message.

    Raises:
        UsageError: the folder cannot be written to.
    """
    place = folder.absolute()
    nearest = next(found for found in (place, *place.parents) if found.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(f"'{nearest}' cannot be written to; choose another {option}")


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is created if it does not exist; replace files of the same names.

    All contents are on disk before the first file gets its name.

    Raises:
        WhitenError: a file cannot be written.
    """
    temporary = {name: folder / f".{name}.{secrets.token_hex(4)}" for name in contents}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            temporary[name].write_bytes(content)
        for name, path in temporary.items():
            path.replace(folder / name)
    except OSError as error:
        raise WhitenError(f"{error.filename or folder}: cannot be written ({error.strerror or error})") from error
    finally:
        for path in temporary.values():
            with suppress(OSError):
                path.unlink()
