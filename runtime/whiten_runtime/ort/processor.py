"""Inspect the machine: threads, instruction sets, whether its int8 products are exact, and memory."""

import math
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whiten_runtime.errors import parse_whole, whole_number

THREADS_VARIABLE = "WHITEN_THREADS"

_MOST_THREADS = 64
"""Largest number of threads on a machine of up to 16 processors; a larger one may have `_MOST_PER_PROCESSOR` for each.
A setting for a larger machine works on a small one too. onnxruntime starts every thread: 16,000 took 16 GB."""

_MOST_PER_PROCESSOR = 4

_X86 = ("x86_64", "amd64", "i686", "x86")

_FEATURES = {
    "AVX2": {"avx2"},
    "AVX-512": {"avx512f"},
    "VNNI": {"avx512_vnni", "avx_vnni"},
    "BF16": {"avx512_bf16", "amx_bf16", "bf16"},
    "AMX": {"amx_tile"},
    "NEON": {"asimd"},
    "DOTPROD": {"asimddp"},
    "I8MM": {"i8mm"},
    "SVE": {"sve"},
}
"""Instruction sets that matter here, and Linux's names for them."""


@dataclass(frozen=True)
class Processor:
    model: str  # name of the processor; "" where the system does not give it
    # instruction sets that matter to matrix products; empty where the system does not list them
    features: tuple[str, ...]
    affinity: int  # number of processors that the process may run on
    quota: float | None  # CPU time that its cgroup may use, in CPUs; None for no limit
    threads: int  # default number of threads, from `default_threads`


def processor(root: Path = Path("/")) -> Processor:
    model, features = _model_and_features(root)
    return Processor(
        model=model,
        features=features,
        affinity=_affinity(),
        quota=_cgroup_quota(root),
        threads=default_threads(),
    )


def default_threads() -> int:
    """Return the default number of threads: the environment's WHITEN_THREADS, else `available_cpus`."""
    wanted = os.environ.get(THREADS_VARIABLE, "").strip()
    if not wanted:
        return available_cpus()
    number = parse_whole(wanted)
    return thread_count(THREADS_VARIABLE, wanted if number is None else number)


def thread_count(name: str, value: Any) -> int:
    """Return a number of threads, or of what has threads each, such as lanes and worker processes."""
    cpus = os.cpu_count() or 1
    most = max(_MOST_THREADS, _MOST_PER_PROCESSOR * cpus)
    return whole_number(name, value, 1, most, f" on this machine with {cpus} processors")


def available_cpus(root: Path = Path("/")) -> int:
    """Return the number of processors this process may use: the smaller of affinity and cgroup quota, at least 1."""
    quota = _cgroup_quota(root)
    return max(1, _affinity() if quota is None else min(_affinity(), math.ceil(quota)))


def saturates_int8(root: Path = Path("/"), machine: str | None = None) -> bool:
    """Return whether uint8 * int8 kernels may saturate here: x86 without VNNI adds pairs of products in 16 bits."""
    if (machine or platform.machine()).lower() not in _X86:
        return False
    return "VNNI" not in _model_and_features(root)[1]


def _model_and_features(root: Path) -> tuple[str, tuple[str, ...]]:
    """Return the name of the first processor, and those of `_FEATURES` that it has; none where nothing lists them."""
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    facts: dict[str, str] = {}
    for key, _, value in (line.partition(":") for line in lines):
        facts.setdefault(key.strip(), value.strip())
    flags = set(f"{facts.get('flags', '')} {facts.get('Features', '')}".split())
    features = tuple(name for name, signs in _FEATURES.items() if signs & flags)
    return facts.get("model name", "") or platform.processor(), features


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cgroup_quota(root: Path) -> float | None:
    """Return the CPUs allowed by the tightest cgroup (v2 or v1) on the path to this process, or None for no limit."""
    quotas = [_quota_v2(group) if version == 2 else _quota_v1(group) for group, version in cgroups(root, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def cgroups(root: Path, controller: str) -> list[tuple[Path, int]]:
    """Return the folders of the cgroups on the path to this process, and their version: 1 or 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, version = root / "sys/fs/cgroup", 2
        elif controller in controllers.split(","):
            mount, version = root / "sys/fs/cgroup" / controller, 1
        else:
            continue
        group = mount / path.lstrip("/")
        while True:
            groups.append((group, version))
            if group == mount or mount not in group.parents:
                break
            group = group.parent
    return groups


def _quota_v2(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(group: Path) -> float | None:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        return None if quota <= 0 else quota / int((group / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError, ZeroDivisionError):
        return None


def usable_memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process may use: the machine's memory, or the limit of its cgroup if that is less."""
    limits = [_physical()]
    for group, version in cgroups(root, "memory"):
        try:
            text = (group / ("memory.max" if version == 2 else "memory.limit_in_bytes")).read_text().strip()
            limits.append(int(text))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(limits)


def _physical() -> int:
    if sys.platform == "win32":
        return 8 << 30  # the least that machines have today
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
