"""Write a directory that appears complete or not at all: made beside its place, and renamed when it is whole."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from whiten_runtime.bundle.manifest import MANIFEST_FILE
from whiten_runtime.errors import UsageError
from whiten_runtime.files.replacing import PARTIAL, check_folder_place, filling, sync_folder, written_as

ELSEWHERE = "another --out"


@dataclass(frozen=True)
class Kind:
    """Kind of directory."""

    name: str  # name of the kind, for messages
    marker: str  # file that every directory of the kind contains; directories without it are never replaced


BUNDLE = Kind("bundle", MANIFEST_FILE)


@contextmanager
def staged(target: Path, replace: bool, kind: Kind = BUNDLE) -> Iterator[Path]:
    """Yield a hidden directory beside `target`, which gets its name when the block ends without an error."""
    named, target = target, target.resolve()
    with written_as(named, ELSEWHERE):
        target.parent.mkdir(parents=True, exist_ok=True)
        _check_target(target, replace, kind)
        stage = _hidden(target)
        stage.mkdir()
    try:
        with filling(stage, named, ELSEWHERE):
            yield stage
        with written_as(named, ELSEWHERE):
            _flush(stage)
            _publish(stage, target, replace, kind)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def check_place(target: Path, replace: bool, kind: Kind = BUNDLE) -> None:
    """Check, before any work, that a directory of a kind, by default a bundle, can be written to `target`."""
    _check_target(target, replace, kind)
    check_folder_place(target, ELSEWHERE)


def _check_target(target: Path, replace: bool, kind: Kind) -> None:
    if _holds_kind(target, target, kind) and not replace:
        raise _exists(target, kind)


def _holds_kind(path: Path, target: Path, kind: Kind) -> bool:
    """Return whether a directory of the kind is at `path`; refuse anything else, named `target`, but an empty one."""
    try:
        names = [entry.name for entry in path.iterdir()]  # one look: it may be replaced meanwhile
    except FileNotFoundError:
        return False
    except NotADirectoryError:  # of the path itself, or of one that leads there
        names = [path.name] if os.path.lexists(path) else []
    if names and kind.marker not in names:
        raise UsageError(f"'{target}' exists and is not a {kind.name}; choose another --out")
    return bool(names)


def _exists(target: Path, kind: Kind) -> UsageError:
    return UsageError(
        f"{kind.name} '{target}' exists; replace it with --force (replace=True in Python), or choose another --out"
    )


def _publish(stage: Path, target: Path, replace: bool, kind: Kind) -> None:
    """Rename what is replaced out of the way, then the new directory into its place; of several processes, one wins."""
    old = _hidden(target)
    while True:
        if replace:
            with suppress(FileNotFoundError):
                target.rename(old)
        try:
            _holds_kind(old, target, kind)  # checked under its hidden name, which no other process replaces
            stage.rename(target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                _put_back(old, target)
                raise
            if not replace:
                raise _exists(target, kind) from None
            shutil.rmtree(old, ignore_errors=True)  # another process was faster: its directory is replaced next
        except UsageError:
            _put_back(old, target)
            raise
        else:
            shutil.rmtree(old, ignore_errors=True)
            sync_folder(target.parent)
            return


def _put_back(old: Path, target: Path) -> None:
    if os.path.lexists(old) and not os.path.lexists(target):
        old.rename(target)


def _hidden(target: Path) -> Path:
    return target.with_name(f".{target.name}{PARTIAL}{secrets.token_hex(4)}")


def _flush(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(directory)
