"""Write a directory that appears complete or not at all."""

import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from whiten_export.writing.exchange import exchange
from whiten_runtime.bundle.manifest import MANIFEST_FILE
from whiten_runtime.errors import UsageError
from whiten_runtime.files.locks import is_abandoned, lock
from whiten_runtime.files.replacing import sync_folder
from whiten_runtime.files.writable import PARTIAL, written_as

_REPLACED = ".replaced-"

_ELSEWHERE = "another --out"


@dataclass(frozen=True)
class Kind:
    """Describes a kind of directory."""

    name: str  # name of the kind, for messages
    marker: str  # file that every directory of the kind contains; directories without it are never replaced


BUNDLE = Kind("bundle", MANIFEST_FILE)


@contextmanager
def staged(target: Path, replace: bool, kind: Kind = BUNDLE) -> Iterator[Path]:
    """Yield a hidden directory beside `target`; rename it to `target` when the block ends without an error.

    The staging directory is locked while it is in use. A directory that a killed process left behind is recognised by
    its free lock, and removed by the next call for the same target. A bundle that is replaced is exchanged with the new
    one in one step, and then removed. Where the file system cannot exchange, it is renamed first: if the process is
    killed before the new one has its name, the next call puts the old one back.
    """
    named, target = target, target.resolve()
    with written_as(named, _ELSEWHERE):
        stage, held = _prepare(target, replace, kind)
        try:
            yield stage
            _flush(stage)
            _publish(stage, target, replace, kind)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
            if held is not None:
                os.close(held)


def check_target(target: Path, replace: bool, kind: Kind = BUNDLE) -> None:
    """Check that a directory of a kind, by default a bundle, may be written to `target`."""
    if not target.exists() and not target.is_symlink():
        return
    if not (target / kind.marker).is_file():
        if not (target.is_dir() and not any(target.iterdir())):
            raise UsageError(f"'{target}' exists and is not a {kind.name}; choose another --out")
    elif not replace:
        raise UsageError(f"{kind.name} '{target}' exists; replace it with --force, or choose another --out")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock an existing directory for this process, where the system has locks."""
    try:
        held = lock(directory)
    except BlockingIOError:
        raise UsageError(f"'{directory}' is in use by another process; wait for it, or name another") from None
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def _prepare(target: Path, replace: bool, kind: Kind) -> tuple[Path, int | None]:
    """Create and lock the staging directory; clean up after killed processes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _recover(target)
    check_target(target, replace, kind)
    while True:
        stage = _unique(target, PARTIAL)
        stage.mkdir()
        with suppress(BlockingIOError):  # another process takes it for abandoned, as it was not locked yet
            held = lock(stage)
            if stage.exists():
                return stage, held
            if held is not None:
                os.close(held)


def _publish(stage: Path, target: Path, replace: bool, kind: Kind) -> None:
    """Give the new directory its name. What it replaces is under the name of the stage afterwards, or removed."""
    if replace and target.exists():
        check_target(target, replace, kind)
        if not exchange(stage, target):
            _replace_in_two_steps(stage, target)
    else:
        try:
            stage.rename(target)
        except OSError:
            check_target(target, replace, kind)  # another process may have been faster
            raise
    sync_folder(target.parent)


def _replace_in_two_steps(stage: Path, target: Path) -> None:
    """Rename the old directory, then the new one: between the two there is none under the name."""
    old = _unique(target, _REPLACED)
    target.rename(old)
    try:
        stage.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _recover(target: Path) -> None:
    """Put back a bundle whose replacement was interrupted; remove directories that killed processes left."""
    for old in target.parent.glob(f".{glob.escape(target.name)}{_REPLACED}*"):
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(target)
    for stage in target.parent.glob(f".{glob.escape(target.name)}{PARTIAL}*"):
        held = is_abandoned(stage)
        if held is not None:
            shutil.rmtree(stage, ignore_errors=True)
            os.close(held)


def _unique(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}{kind}{secrets.token_hex(4)}")


def _flush(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(directory)
