"""The wheel of one commit has the same bytes wherever and whenever it is built."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"


def copy_tree(target: Path, umask: int, when: int) -> Path:
    """Copy the files of the project that the wheel is made of, with modes and times of their own."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    target.mkdir(parents=True)
    for name in ("evaluation", "export", "models", "runtime", "scale", "serving", "whitening"):
        shutil.copytree(ROOT / name, target / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    for path in target.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
        os.utime(path, (when, when))
    return target


def build(source: Path, out: Path, umask: int) -> Path:
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    environment["PIP_CONSTRAINT"] = str(CONSTRAINTS)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-cache-dir", "-w", str(out), str(source)]
    done = subprocess.run(command, env=environment, umask=umask, capture_output=True, text=True, check=False)
    if done.returncode and "hatchling" in done.stderr and "No matching distribution" in done.stderr:
        pytest.skip("the package index is out of reach, and the build needs hatchling")
    assert done.returncode == 0, done.stderr
    (wheel,) = out.glob("*.whl")
    return wheel


def test_two_builds_have_the_same_bytes(tmp_path: Path) -> None:
    first = build(copy_tree(tmp_path / "one", 0o022, 1_500_000_000), tmp_path / "out1", 0o022)
    second = build(copy_tree(tmp_path / "a" / "nother", 0o077, 1_700_000_001), tmp_path / "out2", 0o077)
    names = [zipfile.ZipFile(wheel).namelist() for wheel in (first, second)]
    assert names[0] == names[1]
    assert "whiten_runtime/signing/sign.py" in names[0]
    digests = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in (first, second)]
    assert digests[0] == digests[1]
