"""The environments of the clients, and what their programs run with."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from support.once import installed_environment

HERE = Path(__file__).parent
ENVIRONMENTS = {"clients": "requirements.txt", "frameworks": "requirements-frameworks.txt"}
WITH_WHITEN = os.pathsep.join(str(HERE.parents[1] / name) for name in ("", "runtime", "whitening"))

Runner = Callable[..., None]
Forks = Callable[..., AbstractContextManager[Runner]]


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Forks:
    """Return a function that opens a process of an environment, and gives one that runs programs in forks of it.

    A program is a file, or a command of the environment. A call fails with what the program printed.
    """
    return lambda *modules, whiten=False: running(tmp_path_factory.mktemp("programs"), *modules, whiten=whiten)


@pytest.fixture(scope="session")
def run_client(forks: Forks) -> Iterator[Runner]:
    """Run a program in the environment of `requirements.txt`."""
    with forks("clients", "optimum.exporters.onnx", "optimum.onnxruntime", "sentence_transformers") as run:
        yield run


@pytest.fixture(scope="session")
def run_client_with_whiten(forks: Forks) -> Iterator[Runner]:
    with forks("clients", whiten=True) as run:
        yield run


@contextmanager
def running(scratch: Path, environment: str, *modules: str, whiten: bool) -> Iterator[Runner]:
    """Start a process without a network that imports modules, with whiten's folders if wanted; end it."""
    python = installed_environment(environment, HERE / ENVIRONMENTS[environment])
    settings = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HOME": str(scratch)}
    if whiten:
        settings["PYTHONPATH"] = WITH_WHITEN
    command = [python, HERE / "forks.py", *modules]
    output = scratch / "output"

    def run(program: str | Path, *arguments: object, folder: Path = scratch, **variables: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        file = program if isinstance(program, Path) else python.parent / program
        request = [str(output), str(folder), variables, list(map(str, (file, *arguments)))]
        print(json.dumps(request), file=process.stdin, flush=True)
        code = process.stdout.readline()
        assert code == "0\n", output.read_text("utf-8", errors="replace")[-8000:]

    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=os.environ | settings) as process:
        yield run


@pytest.fixture(scope="session")
def tiny_bundle(fresh_bundle: Path) -> Path:
    return fresh_bundle
