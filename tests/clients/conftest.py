"""The environments of the clients, and what their programs run with."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.once import installed_environment

HERE = Path(__file__).parent
WITH_WHITEN = os.pathsep.join(str(HERE.parents[1] / name) for name in ("", "runtime", "whitening"))

Runner = Callable[..., None]


@pytest.fixture(scope="session")
def clients_python() -> Path:
    return installed_environment("clients", HERE / "requirements.txt")


@pytest.fixture(scope="session")
def run_client(clients_python: Path) -> Runner:
    """Runs a function of clients.py or a command in the environment of `requirements.txt`."""
    return runner(clients_python, "clients.py")


@pytest.fixture(scope="session")
def run_framework() -> Runner:
    """Runs a function of frameworks.py, or a file, in the environment of `requirements-frameworks.txt`, with whiten."""
    python = installed_environment("frameworks", HERE / "requirements-frameworks.txt")
    return runner(python, "frameworks.py", PYTHONPATH=WITH_WHITEN)


@pytest.fixture(scope="session")
def run_client_with_whiten(clients_python: Path) -> Runner:
    return runner(clients_python, "clients.py", PYTHONPATH=WITH_WHITEN)


def runner(python: Path, script: str, **settings: str) -> Runner:
    """Return a function that runs a file, a command, or a function of a script by its name, without a network.

    It fails with what was written.
    """

    def run(program: str | Path, *arguments: object, folder: Path | None = None, **variables: str) -> None:
        if isinstance(program, Path):
            command = [python, program]
        elif f"def {program}(" in (HERE / script).read_text("utf-8"):
            command = [python, HERE / script, program]
        else:
            command = [python.parent / program]
        quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(
            [*command, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | quiet | settings | variables,
            cwd=folder,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr

    return run


@pytest.fixture(scope="session")
def tiny_bundle(fresh_bundle: Path) -> Path:
    return fresh_bundle
