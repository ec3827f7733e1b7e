"""The environment of the clients, and what their programs run with."""

import fcntl
import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent

Runner = Callable[..., None]


@pytest.fixture(scope="session")
def clients_python(pytestconfig: pytest.Config) -> Path:
    """Interpreter of the environment that holds `requirements.txt`, made once and kept in pytest's cache."""
    requirements = HERE / "requirements.txt"
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("clients") / digest
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    complete = folder / "complete"
    with folder.with_name(f"{digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several workers, or sessions, one makes it
        if not complete.exists():
            venv.create(folder, with_pip=True, clear=True)
            command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
            installed = subprocess.run(command, capture_output=True, text=True, check=False)
            if installed.returncode and not os.environ.get("CI"):
                pytest.skip(f"pip could not install the clients: {installed.stderr[-300:]}")
            assert installed.returncode == 0, installed.stderr
            complete.touch()
    return python


@pytest.fixture(scope="session")
def run_client(clients_python: Path) -> Runner:
    """Runs `with_NAME.py`, or another program of the environment, without a network."""

    def run(program: str, *arguments: object, **variables: str) -> None:
        script = HERE / f"with_{program}.py"
        command = [clients_python, script] if script.is_file() else [clients_python.parent / program]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"} | variables
        done = subprocess.run(
            [*command, *map(str, arguments)], capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture(scope="session")
def tiny_bundle(fresh_bundle: Path) -> Path:
    return fresh_bundle
