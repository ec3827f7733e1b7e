"""Test that a disk without space, or a limit of file sizes, ends a job in one line, and that it goes on afterwards."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli import ok

pytestmark = pytest.mark.slow

COMMAND = "from whiten_runtime.commands import console; from whiten_scale.commands.embed_many import embed_many; "
COMMAND += "console.run(embed_many)"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))


def test_a_limit_of_file_sizes(tiny_bundle: Path, filled: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = [
        str(tiny_bundle),
        "--input",
        str(filled),
        "--out",
        str(out),
        "--texts-per-shard",
        "64",
        "--workers",
        "1",
    ]
    command = [sys.executable, "-c", COMMAND, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    assert done.returncode == 1
    message = "part-000000.parquet: cannot be written (File too large); raise the limit of file sizes (ulimit -f)"
    assert done.stderr == f"planning 4 files\nerror: {out}/{message}, or name another --out\n"
    assert [path.name for path in out.iterdir()] == ["_plan.json"]
    assert json.loads(ok("embed-many", *arguments, "--check-output", "--json").stdout)["rows"] == 400


def test_a_full_disk(tiny_bundle: Path, filled: Path, tmp_path: Path, small_disk: Path) -> None:
    out = small_disk / "out"
    arguments = [
        str(tiny_bundle),
        "--input",
        str(filled),
        "--out",
        str(out),
        "--texts-per-shard",
        "64",
        "--workers",
        "1",
    ]
    command = [sys.executable, "-c", COMMAND, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot be written (No space left on device); free some space, or name another --out" in done.stderr
    assert not list(out.glob(".*"))
    there = len(list(out.glob("part-*.parquet")))
    assert there
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    found = json.loads(ok("embed-many", *arguments, "--check-output", "--json").stdout)
    assert (found["rows"], found["resumed"]) == (400, there)
