"""The sizes and versions that pages give for an installation are those of the index and of constraints.txt."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALL = (ROOT / "docs" / "install.md").read_text("utf-8")
UNITS = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}
ON_LINUX = re.compile(r"^\| `'(\.(?:\[\w+\])?)'` \|[^|]*\| ([\d,]+) MB \|", re.MULTILINE)
"""An extra and what it downloads on Linux x86-64, in the table of docs/install.md."""


def on_the_page() -> dict[str, int]:
    return {extra: int(size.replace(",", "")) for extra, size in ON_LINUX.findall(INSTALL)}


@pytest.mark.parametrize("page", ["docs/install.md", "docs/howto/networks.md"])
def test_torch_is_the_version_of_the_constraints(page: str) -> None:
    (pinned,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"torch==([\d.]+)", (ROOT / page).read_text("utf-8"))) == {pinned}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="the column is Linux x86-64's")
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the table is Python 3.11's")
@pytest.mark.parametrize("extra", sorted(extra for extra, size in on_the_page().items() if size < 200))
def test_downloads_are_those_of_the_public_index(extra: str, tmp_path: Path) -> None:
    """pip without this machine's own settings prints the size of each file; it installs nothing.

    Older versions download the files all the same, so the extras with torch, 3 GB, are left out.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("PIP_") or name == "PIP_CERT"}
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-cache-dir"]
    done = subprocess.run(
        [*command, "--report", str(tmp_path / "report.json"), "-c", "constraints.txt", extra],
        cwd=ROOT,
        env=own | {"PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and re.search("NewConnectionError|Name or service not known|timed out", done.stderr):
        pytest.skip("the package index is out of reach")
    assert done.returncode == 0, done.stderr
    files = re.findall(r"^ *Downloading (\S+\.(?:whl|tar\.gz)) \(([\d.]+) ([kMG]B)\)$", done.stdout, re.MULTILINE)
    found = sum(float(size) * UNITS[unit] for _, size, unit in files)
    assert found == pytest.approx(on_the_page()[extra], rel=0.02, abs=1.5)
