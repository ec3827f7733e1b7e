"""Test which memory a process may use, and that texts wait for one another where they would take too much."""

import threading
from pathlib import Path

import pytest

from whiten_runtime.inference.cpu import running_texts
from whiten_runtime.ort.processor import usable_memory


def group(root: Path, line: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(line + "\n")
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("line", "files", "want"),
    [
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "1000"}, 1000),
        ("0::/a/b", {"a/b/memory.max": "500", "a/memory.max": "1000"}, 500),
        ("4:cpu,memory:/x", {"memory/x/memory.limit_in_bytes": "700"}, 700),
    ],
)
def test_the_tightest_cgroup_counts(line: str, files: dict[str, str], want: int, tmp_path: Path) -> None:
    assert usable_memory(group(tmp_path, line, files)) == want


def test_without_a_limit_it_is_the_machines_memory(tmp_path: Path) -> None:
    assert (
        usable_memory(tmp_path) == usable_memory(group(tmp_path / "root", "0::/a", {"a/memory.max": "max"})) > 1 << 28
    )


def test_runs_wait_until_they_fit() -> None:
    entered = threading.Semaphore(0)
    leave = threading.Event()

    def run(needed: int) -> None:
        with running_texts.hold(needed, 100):
            entered.release()
            leave.wait(30)

    threads = [threading.Thread(target=run, args=(60,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert entered.acquire(timeout=30)
    assert not entered.acquire(timeout=0.2)
    with running_texts.hold(40, 100):
        pass
    leave.set()
    for thread in threads:
        thread.join(30)
    assert entered.acquire(timeout=1)
    assert entered.acquire(timeout=1)


def test_a_run_that_is_larger_than_the_budget_of_others_runs_alone() -> None:
    with running_texts.hold(500, 100):
        pass
