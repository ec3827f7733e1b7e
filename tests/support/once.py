"""Make something once for all worker processes of a test session."""

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the temporary folder that all workers of this session share."""
    base = factory.getbasetemp()
    return base.parent if "popen-gw" in base.name else base


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a path that the first worker to ask for it makes, while the others wait.

    Args:
        factory: pytest's.
        name: of the path in the shared folder.
        make: is given the path, and makes a file or a folder there.
    """
    path = shared_folder(factory) / "once" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    done = path.with_name(f"{path.name}.done")
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(path)
            done.touch()
    return path
