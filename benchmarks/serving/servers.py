"""Start and stop the servers that are compared."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.serving.client import Address

_WHITEN = "from whiten_runtime.commands import console; from whiten_serving.commands.serve import serve; "
_WHITEN += "console.run(serve)"


class Server:
    """Holds a server that was started; PORT in the command stands for its port."""

    def __init__(self, command: Sequence[str]) -> None:
        self.address: Address = ("127.0.0.1", _free_port())
        words = [word.replace("PORT", str(self.address[1])) for word in command]
        start = time.perf_counter()
        self._process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        while not _answers(self.address):
            if self._process.poll() is not None:
                raise SystemExit(f"{' '.join(words)} ended with {self._process.returncode}")
            time.sleep(0.005)
        self.start_seconds = time.perf_counter() - start

    def memory(self) -> dict[str, int]:
        """Return bytes by field of /proc/PID/status."""
        return memory(self._process.pid)

    def cpu_seconds(self) -> float:
        """Return the seconds of the processor that it has used so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def whiten(bundle: Path, threads: int, *options: str) -> list[str]:
    """Return the command of `whiten serve`."""
    words = [f"WHITEN_THREADS={threads}", sys.executable, "-c", _WHITEN, str(bundle), "--listen", "PORT", *options]
    return ["env", *words]


def packages(checkout: Path) -> str:
    """Return the path by which Python finds the packages of a checkout."""
    return ":".join(str(checkout / name) for name in ("runtime", "whitening", "serving"))


def peer(python: Path, model: Path, file: str, threads: int) -> list[str]:
    """Return the command of FastAPI with sentence-transformers, in its own environment."""
    return [str(python), str(Path(__file__).with_name("peer.py")), str(model), file, "PORT", str(threads)]


def memory(process: int) -> dict[str, int]:
    """Return bytes by field of /proc/PID/status of Linux: VmRSS (resident), VmHWM (peak resident) and others."""
    rows = (line.partition(":") for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {name: 1024 * int(value.split()[0]) for name, _, value in rows if value.endswith(" kB")}


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _answers(address: Address) -> bool:
    try:
        socket.create_connection(address, 1).close()
    except OSError:
        return False
    return True
