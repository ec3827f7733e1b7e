"""Test that a disk without space, or a limit of file sizes, ends a job in one line, and that it goes on afterwards."""

import json
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli import ok
from support.clusters import EMBED, running

pytestmark = pytest.mark.slow


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


def options(bundle: Path, source: Path, out: Path) -> tuple[object, ...]:
    return (bundle, "--input", source, "--out", out, "--texts-per-shard", 64, "--workers", 1)


def test_a_limit_of_file_sizes(tiny_bundle: Path, filled: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = options(tiny_bundle, filled, out)
    done = running(EMBED, *arguments, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000)))
    assert done.returncode == 1
    message = "part-000000.parquet: cannot be written (File too large); check space and permissions"
    assert done.stderr == f"planning 4 files\nerror: {out}/{message}, or name another --out\n"
    assert [path.name for path in out.iterdir()] == ["_plan.json"]
    assert json.loads(ok("embed-many", *arguments, "--json").stdout)["rows"] == 400


def test_a_full_disk(tiny_bundle: Path, filled: Path, small_disk: Path) -> None:
    out = small_disk / "out"
    arguments = options(tiny_bundle, filled, out)
    done = running(EMBED, *arguments)
    assert done.returncode == 1
    assert "cannot be written (No space left on device); check space and permissions, or name" in done.stderr
    assert not list(out.glob(".*"))
    there = len(list(out.glob("part-*.parquet")))
    assert there
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    found = json.loads(ok("embed-many", *arguments, "--json").stdout)
    assert (found["rows"], found["resumed"]) == (400, there)
