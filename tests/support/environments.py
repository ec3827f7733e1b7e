"""Environments with packages that the project does not need, made once and kept in pytest's cache."""

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest


def kept(config: pytest.Config, name: str, requirements: Path, install: Callable[[Path], Sequence[object]]) -> Path:
    """Return a folder that the first worker or session to ask for it fills, while others wait.

    Args:
        config: pytest's.
        name: of the kind of environment.
        requirements: file of requirements; another content gives another folder.
        install: is given the folder, and returns the command that fills it.
    """
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
    """Return a folder with packages, to be put on PYTHONPATH.

    Args:
        config: pytest's.
        name: of the kind of folder.
        requirements: file of the packages.
        options: further ones of pip.
    """
    command = sys.executable, *PIP, *options, "--upgrade", "--target"
    return kept(config, name, requirements, lambda folder: (*command, folder, "-r", requirements))
