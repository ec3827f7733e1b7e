"""Make something once: for all worker processes of a test session, or for later sessions too."""

import fcntl
import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whiten-tests"
"""Packages of other programs, which all clones share."""

INTERPRETER = "bin/python"

INSTALL = (sys.executable, "-m", "uv", "pip", "install", "--quiet")
"""uv, as pip takes seven times as long; it reads UV_FIND_LINKS and UV_TORCH_BACKEND, and nothing of pip's settings."""


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the temporary folder that all workers of this session share, or WHITEN_TESTS_SHARED.

    That is for one run of one script: what is made in it has no key of the code that made it.
    """
    if "WHITEN_TESTS_SHARED" in os.environ:
        return Path(os.environ["WHITEN_TESTS_SHARED"])
    base = factory.getbasetemp()
    return base.parent if "popen-gw" in base.name else base


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time make what is at a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a path in the shared folder, at which the first worker to ask for it makes a file or a folder."""
    path = shared_folder(factory) / "once" / name
    done = path.with_name(f"{path.name}.done")
    with locked(path):
        if not done.exists():
            make(path)
            done.touch()
    return path


def kept(name: str, requirements: Path, install: Callable[[Path], Sequence[object]]) -> Path:
    """Return a folder for a file of requirements, filled by the command that `install` returns, and kept in `CACHE`."""
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = CACHE / name / digest
    folder.mkdir(parents=True, exist_ok=True)
    complete = folder / "complete"
    with locked(folder):
        if not complete.exists():
            done = subprocess.run(list(map(str, install(folder))), capture_output=True, text=True, check=False)
            if done.returncode and not os.environ.get("CI"):
                pytest.skip(f"what {requirements} names could not be installed: {done.stderr[-300:]}")
            assert done.returncode == 0, done.stderr
            complete.touch()
    return folder


def installed_packages(name: str, requirements: Path, *options: str) -> Path:
    """Return a folder with the packages of a file of requirements, to be put on PYTHONPATH."""
    command = *INSTALL, "--python", sys.executable, *options
    return kept(name, requirements, lambda folder: (*command, "--target", folder, "-r", requirements))


def installed_environment(name: str, requirements: Path) -> Path:
    """Return the interpreter of a virtual environment with the packages of a file of requirements."""

    def install(folder: Path) -> tuple[object, ...]:
        venv.create(folder, clear=True)
        return *INSTALL, "--python", folder / INTERPRETER, "-r", requirements

    return kept(name, requirements, install) / INTERPRETER
