"""Test which memory a process may use."""

from pathlib import Path

import pytest

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
