"""Leave these tests out where the packages of the extra `serve` are not installed; install npm's packages."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.once import kept

NEEDED = ("orjson", "prometheus_client", "uvicorn", "uvloop")

collect_ignore_glob = [] if all(map(find_spec, NEEDED)) else ["test_*.py"]


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """The folder of the packages that npm/package.json names; skip where there is no Node."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    manifest = Path(__file__).parent / "npm" / "package.json"

    def install(folder: Path) -> tuple[object, ...]:
        shutil.copy(manifest, folder)
        quiet = "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"
        return "npm", "install", *quiet, "--prefix", folder

    return kept("serving-clients-npm", manifest, install) / "node_modules"
