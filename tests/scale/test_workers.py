"""Test the processes of a job: what is killed begins anew, what fails stops all, and nothing outlives the driver."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.cli import ok, python
from support.clusters import descendants
from whiten_runtime.errors import UsageError, WhitenError
from whiten_scale import workers
from whiten_scale.places import Folder
from whiten_scale.plan import read_job
from whiten_scale.shard import VectorChoice, finished
from whiten_scale.workers import Work, run_items

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@pytest.fixture
def work(tiny_bundle: Path, filled: Path, tmp_path: Path, texts_per_shard: Callable[[int], None]) -> Work:
    """The work of a plan of 13 shards."""
    texts_per_shard(50)
    ok("embed-many", tiny_bundle, "--input", filled, "--out", tmp_path / "out", "--plan-only")
    job = read_job(Folder(str(tmp_path / "out")))
    assert job is not None
    return Work(job=job, bundle=str(tiny_bundle), out=str(tmp_path / "out"), vectors=VectorChoice())


def rows(work: Work) -> int:
    return sum(record.rows for record in finished(work.job, Folder(work.out), range(work.items)).values())


@pytest.mark.slow
def test_workers_that_are_killed_again_and_again_are_told(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_do", os._exit)
    with pytest.raises(WhitenError, match="killed 4 times"):
        list(run_items(work, range(work.items), 1))


@pytest.mark.slow
def test_the_first_error_stops_all(work: Work, tmp_path: Path) -> None:
    (tmp_path / "out" / "part-000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"part-000001\.parquet"):
        list(run_items(work, range(work.items), 2))
    assert not list((tmp_path / "out").glob(".*"))
    assert not multiprocessing.active_children()


def test_a_bundle_that_is_gone_is_told(work: Work, tmp_path: Path) -> None:
    with pytest.raises(WhitenError, match="nowhere"):
        list(run_items(msgspec.structs.replace(work, bundle=str(tmp_path / "nowhere")), [0], 1))


DRIVER = """
import sys, msgspec
from whiten_scale.workers import Work, run_items
work = msgspec.json.decode(open(sys.argv[1], "rb").read(), type=Work)
for number, item in enumerate(run_items(work, range(work.items), 2), 1):
    print(item, flush=True)
    if number == work.items:
        sys.stdin.read()  # however late the signal comes, the workers are there
"""


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_driver(work: Work, tmp_path: Path, number: int) -> None:
    (tmp_path / "work").write_bytes(msgspec.json.encode(work))
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "work")]
    driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert driver.stdin is not None
    assert driver.stdout is not None
    driver.stdout.readline()
    started = descendants(driver.pid)[1:]
    assert len(started) >= 2
    driver.send_signal(number)
    driver.wait(60)
    driver.stdout.close()
    driver.stdin.close()
    end = time.monotonic() + 90
    while any(Path(f"/proc/{pid}/exe").exists() for pid in started):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert not list((tmp_path / "out").glob(".*.partial-*"))
    list(run_items(work, range(work.items), 2))
    assert rows(work) == 400


MEMORY = """
import sys
from whiten_scale import workers
from whiten_scale.places import Folder
from whiten_scale.plan import read_job
from whiten_scale.shard import VectorChoice, Vectors, embed_shard
from pathlib import Path
out = Folder(sys.argv[2])
vectors = Vectors(Path(sys.argv[1]), VectorChoice())
embed_shard(vectors, read_job(out), 0, out)
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
def test_memory_does_not_grow_with_the_corpus(
    tiny_bundle: Path, tmp_path: Path, texts_per_shard: Callable[[int], None]
) -> None:
    """One shard of 10,000 or 400,000 short texts, which take 26 MB and their vectors 51 MB: windows of 4,096 are held.

    The peak is VmHWM, as getrusage counts the memory of the process that forked this one too.
    """
    peaks = []
    for count in (10_000, 400_000):
        source, out = tmp_path / f"{count}.txt", tmp_path / f"out{count}"
        source.write_text("".join(f"{number}\n" for number in range(count)))
        texts_per_shard(count)
        ok("embed-many", tiny_bundle, "--input", source, "--out", out, "--plan-only")
        peaks.append(int(python(MEMORY, tiny_bundle, out, check=True).stdout) * 1024)
    assert peaks[1] - peaks[0] < 15e6, peaks


def test_sigterm_unwinds_an_item_and_ends_a_process_between_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two items the pool's own code would drop an exception, and the process would wait for work."""
    handlers = list[Any]()
    of_sigterm = partial(signal.getsignal, signal.SIGTERM)
    monkeypatch.setattr(workers, "open_once", lambda content: lambda item: handlers.append(of_sigterm()))
    before = of_sigterm()
    try:
        workers._do(0)
        assert of_sigterm() is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(SystemExit):
        handlers[0](signal.SIGTERM, None)
