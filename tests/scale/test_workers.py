"""Test the processes of a job: what is killed begins anew, what fails stops all, and nothing outlives the driver."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from support.cli import ok
from whiten_runtime.errors import UsageError, WhitenError
from whiten_scale import workers
from whiten_scale.checking import finished
from whiten_scale.job import Job, read_job
from whiten_scale.places import Folder
from whiten_scale.tasks import Work
from whiten_scale.vectors import VectorChoice
from whiten_scale.workers import check_workers, run_items, share_of

pytestmark = pytest.mark.slow


@pytest.fixture
def work(tiny_bundle: Path, filled: Path, tmp_path: Path) -> Work:
    """The work of a plan of 13 shards."""
    ok("embed-many", tiny_bundle, "--input", filled, "--per-shard", 50, "--out", tmp_path / "out", "--plan-only")
    job = read_job(Folder(str(tmp_path / "out")))
    assert job is not None
    return Work(job=job, bundle=str(tiny_bundle), out=str(tmp_path / "out"), vectors=VectorChoice())


def children(name: str = "whiten_scale.worker") -> set[int]:
    """Return the workers that are children of this process."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and name in (path / "cmdline").read_text():
                found.add(int(path.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@needs_proc
def test_a_killed_worker_is_replaced(work: Work, tmp_path: Path) -> None:
    counts, killed, lock = [], [], threading.Lock()

    def advance(count: int) -> None:
        with lock:
            counts.append(count)
            if len(killed) < 2 and sum(counts) > 150 * len(killed):
                killed.append(children().pop())
                os.kill(killed[-1], signal.SIGKILL)

    run_items(work, range(work.items), 2, advance)
    assert len(killed) == 2
    assert sum(counts) == work.job.plan.starts[-1]
    done = finished(work.job, Folder(work.out), range(work.items))
    assert sum(record.rows for record in done.values()) == 400
    assert not children()


def test_a_worker_that_is_killed_before_it_begins_is_replaced(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = f"import os, pathlib; path = pathlib.Path({str(tmp_path / 'killed')!r})\n"
    once += "if not path.exists(): path.touch(); os.kill(os.getpid(), 9)\n"
    once += "import runpy; runpy.run_module('whiten_scale.worker', run_name='__main__')"
    monkeypatch.setattr(workers, "_COMMAND", (sys.executable, "-c", once))
    run_items(work, [0], 1)
    assert (tmp_path / "killed").exists()
    assert finished(work.job, Folder(work.out), [0])[0].rows > 0


@needs_proc
def test_an_item_that_kills_its_workers_is_told(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    stopper = 'import sys, os; sys.stdin.readline(); print(\'{"kind": "ready"}\', flush=True); '
    stopper += "sys.stdin.readline(); os.kill(os.getpid(), 9)"
    monkeypatch.setattr(workers, "_COMMAND", (sys.executable, "-c", stopper))
    with pytest.raises(WhitenError, match=r"3 workers ended with signal 9 in item 0; .* use fewer --workers"):
        run_items(work, [0], 2)


def test_a_worker_that_does_not_begin_is_told(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_COMMAND", (sys.executable, "-c", "raise SystemExit(7)"))
    with pytest.raises(WhitenError, match="a worker ended with exit code 7 before it began"):
        run_items(work, [0, 1], 2)


def test_the_first_error_stops_all(work: Work, tmp_path: Path) -> None:
    (tmp_path / "out" / "part-000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"part-000001\.parquet: is no shard that whiten has written"):
        run_items(work, range(work.items), 2)
    assert not list((tmp_path / "out").glob(".*"))


def test_a_bundle_that_is_gone_is_told(work: Work, tmp_path: Path) -> None:
    from msgspec.structs import replace

    with pytest.raises(WhitenError, match="nowhere"):
        run_items(replace(work, bundle=str(tmp_path / "nowhere")), [0], 1)


DRIVER = """
import sys, msgspec
from whiten_scale.tasks import Work
from whiten_scale.workers import run_items
work = msgspec.json.decode(open(sys.argv[1], "rb").read(), type=Work)
run_items(work, list(range(work.items)), 2, lambda count: print(count, flush=True))
"""


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_driver(work: Work, tmp_path: Path, number: int) -> None:
    import msgspec

    (tmp_path / "work").write_bytes(msgspec.json.encode(work))
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "work")]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert driver.stdout is not None
    driver.stdout.readline()
    driver.send_signal(number)
    driver.wait(60)
    driver.stdout.close()
    end = time.monotonic() + 30
    while any(_is_worker_of(path, tmp_path) for path in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert not list((tmp_path / "out").glob(".*.partial-*"))
    run_items(work, range(work.items), 2)
    done = finished(work.job, Folder(work.out), range(work.items))
    assert sum(record.rows for record in done.values()) == 400


def _is_worker_of(path: Path, folder: Path) -> bool:
    """Return whether a process is a worker that has a file of a folder open."""
    try:
        return any(str(folder) in str(link.readlink()) for link in (path / "fd").iterdir())
    except OSError:
        return False


def test_numbers_of_workers() -> None:
    assert check_workers(None, 100, 8) == 8
    assert check_workers(3, 100, 8) == 3
    assert check_workers(99, 5, 8) == 5
    assert check_workers(None, 0, 8) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_shares_hold_every_item_once(count: int) -> None:
    items = list(range(17))
    shares = [share_of(items, f"{number}/{count}") for number in range(1, count + 1)]
    assert sorted(item for share in shares for item in share) == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "a/b", "1/2/3", "-1/2", "1.0/2", "²/3"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(UsageError, match="wanted K/N"):
        share_of([1], text)


def test_a_key_tells_all_that_decides(work: Work) -> None:
    from msgspec.structs import replace

    job: Job = work.job
    plan: Any = replace(job.plan, files=tuple(replace(file, url="elsewhere", stamp="now") for file in job.plan.files))
    assert replace(job, plan=plan, bundle="renamed").key == job.key
    others = [replace(job, bundle_sha256="0"), replace(job, options={"a": "b"}), replace(job, task="fit")]
    others.append(replace(job, plan=replace(job.plan, shards=job.plan.shards[:-1])))
    assert len({job.key, *(one.key for one in others)}) == 5
