"""Read what `whiten serve` gets besides its settings: bundles with their names, and keys that requests must have."""

import os
import re
import signal
import stat
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.ort.process import is_terminal

KEY_VARIABLE = "WHITEN_API_KEY"
"""Environment variable of keys, separated by commas; they hold besides those of the file."""

_KEY = re.compile(r"([\w.@-]{1,64})(?::\s*|\s+)([!-~]+)|([!-9;-~]+)", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]*")
_NAMED = re.compile(rf"({_NAME.pattern})=(.+)", re.DOTALL)


@dataclass(frozen=True)
class ModelChoice:
    """Names a bundle to serve: its directory, or a repository of the model hub."""

    name: str
    bundle: str


def model_choices(written: Sequence[str], warn: Callable[[str], object]) -> tuple[ModelChoice, ...]:
    """Return the models of arguments [NAME=]BUNDLE; the name is that of the directory if none is given."""
    if not written:
        raise UsageError("there is no model to serve; give a bundle, as in whiten serve bundles/minilm")
    chosen = tuple(_choice(argument, warn) for argument in written)
    names = [model.name for model in chosen]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two models are called '{name}'; give them names, as in first=BUNDLE second=BUNDLE")
    return chosen


def names_of_bundles(choices: Sequence[ModelChoice]) -> dict[str, list[str]]:
    """Return the bundles, each with the names by which it is served: a directory may be written in several ways."""
    names: dict[str, list[str]] = {}
    bundles: dict[str, str] = {}
    for choice in choices:
        path = Path(choice.bundle)
        place = str(path.absolute()) if path.is_dir() else choice.bundle
        names.setdefault(bundles.setdefault(place, choice.bundle), []).append(choice.name)
    return names


def _choice(written: str, warn: Callable[[str], object]) -> ModelChoice:
    named, is_directory = _NAMED.fullmatch(written), Path(written).is_dir()
    if named and is_directory:
        warn(f"'{written}' is a directory, and is served as one; write ./{written} to say so, or NAME={written}")
    elif named:
        return ModelChoice(named[1], named[2])
    path = Path(written.removeprefix("hf://").partition("@")[0])
    name = path.name if path.name not in ("", "..") else path.resolve().name
    if not _NAME.fullmatch(name):
        raise UsageError(f"'{written}' has no name that a request can use; give one, as in model={written}")
    return ModelChoice(name, written)


def note_hang_ups() -> list[int]:
    """Return a list to which each SIGHUP is added, in place of ending a process that starts, until others take it.

    If stderr was a terminal that is gone, the process ends all the same.
    """
    noted: list[int] = []
    terminal = is_terminal(sys.stderr)

    def note(number: int, frame: object) -> None:
        if terminal and not is_terminal(sys.stderr):
            raise SystemExit(128 + number)
        noted.append(number)

    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, note)
    return noted


def usual_format() -> Literal["text", "json"]:
    """Return the format of the log where none is asked for."""
    return "text" if is_terminal(sys.stderr) else "json"


def read_keys(file: str | None, environment: Mapping[str, str], warn: Callable[[str], object]) -> dict[str, str]:
    """Return the keys of the environment and of a file, each with its client's name, or ""; none if none is needed.

    A line of the file is KEY, NAME KEY or NAME:KEY: what stands before the first blank, or else before the first colon,
    is the name. The environment has keys alone, separated by commas.
    """
    written = environment.get(KEY_VARIABLE)
    keys = {key: "" for part in (written or "").split(",") if (key := part.strip())}
    if written is not None and not (keys and all(re.fullmatch("[!-~]+", key) for key in keys)):
        wanted = "write keys of ASCII without blanks, separated by commas, or unset it"
        raise UsageError(f"{KEY_VARIABLE} holds no key, or one that no header can hold; {wanted}")
    return keys if file is None else keys | _in_file(Path(file), warn)


def _in_file(path: Path, warn: Callable[[str], object]) -> dict[str, str]:
    try:
        mode, lines = path.stat().st_mode, path.read_text("utf-8").split("\n")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; wanted a file of keys, one a line") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not a text; wanted a file of keys, one a line") from None
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _KEY.fullmatch(line.strip())
        name, key = (match[1] or "", match[2] or match[3]) if match else ("", "")
        if not key or key.startswith("#") or keys.setdefault(key, name) != name:
            wanted = "wanted KEY, NAME KEY or NAME:KEY, one name of letters, digits and ._@- for each key"
            raise DataError(f"{path}, line {number}: {wanted}")
    if not keys:
        raise DataError(f"{path}: holds no key; write one a line, or leave --api-key-file out")
    if os.name == "posix" and mode & stat.S_IROTH:
        warn(f"{path}: everybody on this machine can read the keys; run chmod 600 on it")
    return keys
