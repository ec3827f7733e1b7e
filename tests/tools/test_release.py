"""`.ci/release` refuses a tag that is not the version, before it builds or removes anything."""

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "release"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a folder with the script, pyproject.toml and an older distribution, where the first step fails."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "release").write_bytes(SCRIPT.read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "old.whl").touch()
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text("#!/bin/sh\necho began; exit 7\n")
    python.chmod(0o755)
    return tmp_path


def run(copy: Path, tag: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TAG": tag, "PATH": f"{copy / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", str(copy / ".ci" / "release")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("tag", ["v9.9.9", VERSION, f"v{VERSION}.1"])
def test_another_tag_is_refused(copy: Path, tag: str) -> None:
    done = run(copy, tag)
    assert done.returncode == 1
    assert done.stderr == f"error: the tag is {tag}, but pyproject.toml has {VERSION}; tag v{VERSION}\n"
    assert "began" not in done.stdout
    assert (copy / "dist" / "old.whl").exists()


@pytest.mark.parametrize("tag", [f"v{VERSION}", ""])
def test_the_right_tag_and_none_go_on(copy: Path, tag: str) -> None:
    done = run(copy, tag)
    assert (done.returncode, done.stdout) == (7, "began\n")
