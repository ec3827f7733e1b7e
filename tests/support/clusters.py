"""Commands, nodes of a cluster and stores in processes of their own, with packages of their own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.once import installed_packages

HERE = Path(__file__).parents[1] / "scale" / "clusters"

EMBED = "from whiten_scale.commands.embed_many import embed_many as command"
FIT = "from whiten_scale.commands.fit import fit as command"


def in_shards(code: str, texts: int) -> str:
    """Return code that imports a command, with another largest number of texts of a shard in the jobs that it plans."""
    return f"from whiten_scale import planner; planner.PER_SHARD = {texts}; {code}"


def packages(name: str) -> Path:
    """Return a folder with the packages of a file of requirements."""
    return installed_packages(f"scale-{name}", HERE / f"{name}.txt", "--no-deps")


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a process that has further packages."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}


def command_line(code: str, *arguments: object) -> list[str]:
    """Return the command line of a command of `whiten`."""
    program = f"from whiten_runtime.commands import console; {code}; console.run(command)"
    return [sys.executable, "-c", program, *map(str, arguments)]


def running(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of `whiten` in a process of its own, with options of `subprocess.run`."""
    command = command_line(code, *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=400, **options)


def descendants(pid: int) -> list[int]:
    """Return a process and all that it started, and those that they started."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents.setdefault(parent, []).append(int(path.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


@contextmanager
def started(command: Sequence[object], env: dict[str, str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process until the block ends; what it started ends with it."""
    with log.open("wb") as file:
        process = subprocess.Popen([str(part) for part in command], env=env, stdout=file, stderr=file)
        try:
            yield process
        finally:
            for pid in descendants(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def until(condition: Callable[[], bool], log: Path, seconds: float = 180) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, log.read_text("utf-8", "replace")[-3000:]
        time.sleep(0.2)
