"""Kill workers and drivers at seeded moments: no row is lost or doubled, no file is half, and bytes are the same."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet
import pytest

from support.bundles import contents
from support.cli import ok
from support.clusters import EMBED, command_line, descendants, in_shards

MOMENTS = 6
LONGEST = 4.0
"""Seconds after which a process is killed, at most: the whole job takes longer."""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 24,000 texts, which take some seconds."""
    from support.corpus import sentences

    path = tmp_path_factory.mktemp("killed") / "in.jsonl"
    texts = sentences(400)
    rows = ({"id": number, "text": f"{texts[number % 400]} {number}"} for number in range(24_000))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def options(bundle: Path, source: Path, out: Path, workers: int) -> tuple[object, ...]:
    return (bundle, "--input", source, "--out", out, "--id", "id", "--workers", workers)


def newest(driver: int) -> list[int]:
    """Return the youngest child of a driver: a worker, as the resource tracker of multiprocessing is older."""
    return sorted(descendants(driver)[1:], key=begun)[-1:]


def begun(pid: int) -> int:
    """Return when a process began: numbers of processes begin anew at 32,768 on many systems."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return 0


def kill(pid: int) -> bool:
    """Kill a process; return whether it was still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def whole_files(out: Path) -> int:
    """Check that every file that has its name is whole, and return their number."""
    found = sorted(out.glob("part-*.parquet"))
    for path in found:
        assert len(pyarrow.parquet.read_table(path)) == 2000
    return len(found)


@pytest.mark.parametrize("victim", ["worker", "driver"])
def test_kills_lose_nothing(
    victim: str, tiny_bundle: Path, source: Path, tmp_path: Path, texts_per_shard: Callable[[int], None]
) -> None:
    texts_per_shard(2000)
    moments, out, killed = random.Random(24), tmp_path / "out", 0
    deadline = time.monotonic() + 600
    while killed < MOMENTS:
        assert time.monotonic() < deadline
        command = command_line(in_shards(EMBED, 2000), *options(tiny_bundle, source, out, 2))
        driver = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        until = time.monotonic() + moments.uniform(0.3, LONGEST)
        while time.monotonic() < until and driver.poll() is None:
            time.sleep(0.01)
        victims = [driver.pid] if victim == "driver" else newest(driver.pid)
        if driver.poll() is None and victims:
            killed += kill(victims[0])
            whole_files(out)
        if victim == "worker":
            while driver.poll() is None and killed < MOMENTS and time.monotonic() < deadline:
                time.sleep(moments.uniform(0.1, 1.0))
                for one in newest(driver.pid):
                    killed += kill(one)
        if victim == "driver" or killed == MOMENTS:
            driver.kill()
        driver.wait(60)
        if out.exists() and whole_files(out) == 12:
            moved = out.with_name(f"whole-{len(list(tmp_path.glob('whole-*')))}")
            out.rename(moved)
    found = ok("embed-many", *options(tiny_bundle, source, out, 2), "--json")
    assert json.loads(found.stdout)["rows"] == 24_000
    ids = [one for path in sorted(out.glob("*.parquet")) for one in pyarrow.parquet.read_table(path)["id"].to_pylist()]
    assert ids == list(range(24_000))
    ok("embed-many", *options(tiny_bundle, source, tmp_path / "one", 1))
    wanted = contents(tmp_path / "one")
    for folder in (out, *tmp_path.glob("whole-*")):
        assert contents(folder) == wanted
