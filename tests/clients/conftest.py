"""The environment of the clients, and what their programs run with."""

import os
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from support.environments import PIP, kept

HERE = Path(__file__).parent

Runner = Callable[..., None]


@pytest.fixture(scope="session")
def clients_python(pytestconfig: pytest.Config) -> Path:
    """Interpreter of the environment that holds `requirements.txt`, made once and kept in pytest's cache."""
    requirements = HERE / "requirements.txt"

    def install(folder: Path) -> tuple[object, ...]:
        venv.create(folder, with_pip=True, clear=True)
        return interpreter(folder), *PIP, "-r", requirements

    return interpreter(kept(pytestconfig, "clients", requirements, install))


def interpreter(folder: Path) -> Path:
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


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
