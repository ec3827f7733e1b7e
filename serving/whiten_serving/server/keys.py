"""Read the keys that requests must have."""

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from whiten_runtime.errors import DataError, UsageError

KEY_VARIABLE = "WHITEN_API_KEY"
"""Environment variable of keys, separated by commas; they hold besides those of the file."""


def read_keys(file: str | None, environment: Mapping[str, str], warn: Callable[[str], object]) -> tuple[str, ...]:
    """Return the keys of a file, one a line, and of the environment; none means that requests need none.

    Args:
        file: the file; empty lines and lines that begin with # are left out.
        environment: the environment variables.
        warn: function that gets a warning if the file can be read by everybody.

    Raises:
        DataError: the file cannot be read, or holds no key.
        UsageError: a key cannot stand in a header; or the variable is there, and holds none.
    """
    written = environment.get(KEY_VARIABLE)
    keys = [key for part in (written or "").split(",") if (key := part.strip())]
    if written is not None and not keys:
        raise UsageError(f"{KEY_VARIABLE} holds no key; write keys, separated by commas, or unset it")
    if file is not None:
        keys += _in_file(Path(file), warn)
    for index, key in enumerate(keys):
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise UsageError(f"key {index + 1} of {len(keys)} has blanks or other characters that no header can hold")
    return tuple(dict.fromkeys(keys))


def _in_file(path: Path, warn: Callable[[str], object]) -> list[str]:
    try:
        mode, lines = path.stat().st_mode, path.read_text("utf-8").splitlines()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; wanted a file of keys, one a line") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not a text; wanted a file of keys, one a line") from None
    keys = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
    if not keys:
        raise DataError(f"{path}: holds no key; write one a line, or leave --api-key-file out")
    if os.name == "posix" and mode & stat.S_IROTH:
        warn(f"{path}: everybody on this machine can read the keys; run chmod 600 on it")
    return keys
