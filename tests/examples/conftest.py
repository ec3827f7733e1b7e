"""The packages of the examples and of what checks them, in folders of their own, and what runs them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.once import installed_packages

ROOT = Path(__file__).parents[2]
HOMES = ("export", "models", "runtime", "whitening")

Runner = Callable[..., str]

PARSE = """
import io, json, sys
from dockerfile_parse import DockerfileParser
parser = DockerfileParser(fileobj=io.BytesIO(open(sys.argv[1], "rb").read()))
print(json.dumps([[[step["instruction"], step["value"]] for step in parser.structure], dict(parser.envs)]))
"""


@pytest.fixture(scope="session")
def run_example() -> Runner:
    """Run a file of `examples` and return what it printed."""
    requirements = Path(__file__).with_name("requirements.txt")
    packages = installed_packages("examples", requirements, "--no-deps")
    path = os.pathsep.join(map(str, (*(ROOT / home for home in HOMES), packages)))

    def run(name: str, *arguments: object) -> str:
        command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path}
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def tools() -> Path:
    """The folder of the packages that check the examples."""
    return installed_packages("examples-tools", Path(__file__).with_name("tools.txt"))


@pytest.fixture(scope="session")
def checked(tools: Path) -> Callable[..., Any]:
    """Return a function that runs Python with the tools, and returns the JSON that it prints."""

    def run(code: str, *arguments: object) -> Any:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": str(tools)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def dockerfile(tools: Path, checked: Callable[..., Any]) -> Callable[[Path], tuple[Any, dict[str, str], set[str]]]:
    """Return a function that checks a Dockerfile, and returns its steps, its variables, and what it is built from."""

    def read(path: Path) -> tuple[Any, dict[str, str], set[str]]:
        lint = subprocess.run([tools / "bin" / "hadolint", path], capture_output=True, text=True, check=False)
        assert lint.returncode == 0, lint.stdout
        ignored = path.with_name("Dockerfile.dockerignore").read_text("utf-8").splitlines()
        kept = {line[1:] for line in ignored if line.startswith("!")}
        assert [name for name in kept - {"bundles"} if not (ROOT / name).exists()] == []
        steps, variables = checked(PARSE, path)
        assert dict(steps)["USER"] == "65532:65532"
        return steps, variables, kept

    return read
