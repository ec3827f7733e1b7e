"""The environments of the clients, and what their programs run with."""

import os
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from support.once import PIP, kept

HERE = Path(__file__).parent
WITH_WHITEN = os.pathsep.join(str(HERE.parents[1] / name) for name in ("", "runtime", "whitening"))

Runner = Callable[..., None]


def environment(config: pytest.Config, requirements: Path) -> Path:
    """Return the interpreter of the environment that holds these requirements, made once and kept in pytest's cache."""

    def install(folder: Path) -> tuple[object, ...]:
        venv.create(folder, with_pip=True, clear=True)
        return interpreter(folder), *PIP, "-r", requirements

    return interpreter(kept(config, "clients", requirements, install))


def interpreter(folder: Path) -> Path:
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


@pytest.fixture(scope="session")
def clients_python(pytestconfig: pytest.Config) -> Path:
    return environment(pytestconfig, HERE / "requirements.txt")


@pytest.fixture(scope="session")
def run_client(clients_python: Path) -> Runner:
    """Runs a function of clients.py or a command in the environment of `requirements.txt`."""
    return runner(clients_python, "clients.py")


@pytest.fixture(scope="session")
def run_framework(pytestconfig: pytest.Config) -> Runner:
    """Runs a function of frameworks.py, or a file, in the environment of `requirements-frameworks.txt`, with whiten."""
    python = environment(pytestconfig, HERE / "requirements-frameworks.txt")
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
