"""Make something once: for all worker processes of a test session, or for later sessions too."""

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the temporary folder that all workers of this session share."""
    base = factory.getbasetemp()
    return base.parent if "popen-gw" in base.name else base


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a path in the shared folder, at which the first worker to ask for it makes a file or a folder."""
    path = shared_folder(factory) / "once" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    done = path.with_name(f"{path.name}.done")
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(path)
            done.touch()
    return path


def kept(config: pytest.Config, name: str, requirements: Path, install: Callable[[Path], Sequence[object]]) -> Path:
    """Return a folder in pytest's cache for a file of requirements, filled by the command of `install`."""
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    assert config.cache is not None
    folder = config.cache.mkdir(name) / digest
    complete = folder / "complete"
    with folder.with_name(f"{digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            command = list(map(str, install(folder)))
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode and not os.environ.get("CI"):
                pytest.skip(f"pip could not install what {requirements.parent.name} need: {done.stderr[-300:]}")
            assert done.returncode == 0, done.stderr
            complete.touch()
    return folder


PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def installed_packages(config: pytest.Config, name: str, requirements: Path, *options: str) -> Path:
    """Return a folder with the packages of a file of requirements, to be put on PYTHONPATH."""
    command = sys.executable, *PIP, *options, "--upgrade", "--target"
    return kept(config, name, requirements, lambda folder: (*command, folder, "-r", requirements))
