"""The packages of the examples, in a folder of their own, and what runs an example."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.once import installed_packages

ROOT = Path(__file__).parents[2]
HOMES = ("export", "models", "runtime", "whitening")

Runner = Callable[..., str]


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
