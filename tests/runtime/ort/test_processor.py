import os
from pathlib import Path

import pytest

from whiten import UsageError
from whiten_runtime.ort.processor import available_cpus, default_threads, saturates_int8
from whiten_runtime.ort.session import SessionOptions

AFFINITY = len(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def _cgroup(root: Path, line: str, files: dict[str, str]) -> Path:
    for name, content in {"proc/self/cgroup": line, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.mark.parametrize(
    ("quota", "cpus"), [("max 100000", 8), ("150000 100000", 2), ("1000 100000", 1), ("bad", 8), ("100 0", 8)]
)
def test_quota_of_cgroup_v2(tmp_path: Path, quota: str, cpus: int) -> None:
    assert available_cpus(_cgroup(tmp_path, "0::/\n", {"sys/fs/cgroup/cpu.max": quota})) == cpus


def test_tightest_cgroup_on_the_path_is_used(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/a/cpu.max": "300000 100000", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}
    assert available_cpus(_cgroup(tmp_path, "0::/a/b\n", files)) == 3


@pytest.mark.parametrize(("quota", "cpus"), [("-1", 8), ("250000", 3)])
def test_quota_of_cgroup_v1(tmp_path: Path, quota: str, cpus: int) -> None:
    files = {"sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": quota, "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000"}
    assert available_cpus(_cgroup(tmp_path, "4:cpu,cpuacct:/x\n3:memory:/\n", files)) == cpus


def test_affinity_is_used_without_cgroups(tmp_path: Path) -> None:
    assert available_cpus(tmp_path) == 8


def test_affinity_is_the_limit_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 1 <= available_cpus() <= AFFINITY


def test_environment_variable_sets_default_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHITEN_THREADS", "3")
    assert default_threads() == 3
    monkeypatch.setenv("WHITEN_THREADS", "")
    assert default_threads() == available_cpus()
    for bad in ("0", "-1", "two", "1.5", "1_0", "４"):
        monkeypatch.setenv("WHITEN_THREADS", bad)
        with pytest.raises(UsageError, match="WHITEN_THREADS"):
            default_threads()


@pytest.mark.parametrize(("cpus", "most"), [(2, 64), (16, 64), (96, 384)])
def test_numbers_of_threads_are_bounded(cpus: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    monkeypatch.setenv("WHITEN_THREADS", str(most))
    assert default_threads() == SessionOptions(threads=most).threads == most
    monkeypatch.setenv("WHITEN_THREADS", "99999")
    wanted = f" is 99999; wanted a whole number from 1 to {most} on this machine with {cpus} processors"
    with pytest.raises(UsageError, match=f"^WHITEN_THREADS{wanted}$"):
        default_threads()
    with pytest.raises(UsageError, match=f"^threads{wanted}$"):
        SessionOptions(threads=99999)


@pytest.mark.parametrize(
    ("machine", "flags", "saturates"),
    [
        ("x86_64", "flags : sse2 avx2 avx512f", True),
        ("x86_64", "flags : sse2 avx2 avx512_vnni", False),
        ("AMD64", "flags : avx_vnni", False),
        ("x86_64", None, True),
        ("aarch64", "Features : asimd", False),
    ],
)
def test_processors_that_saturate_int8_are_detected(
    tmp_path: Path, machine: str, flags: str | None, saturates: bool
) -> None:
    if flags is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc" / "cpuinfo").write_text(flags)
    assert saturates_int8(tmp_path, machine) is saturates
