"""Test the filter of `benchmarks.peers` that refuses AMX, in a process of its own: it cannot be undone."""

import errno
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ASK = (
    "import ctypes; library = ctypes.CDLL(None, use_errno=True); "
    "given = library.syscall(158, 0x1023, 18); print(given, ctypes.get_errno())"
)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="AMX is refused on Linux on x86-64"
)


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, check=True)
    return done.stdout.strip()


def test_amx_is_refused() -> None:
    assert run("-m", "benchmarks.peers.without_amx", "-c", ASK) == f"-1 {errno.EPERM}"


def test_without_the_filter_the_call_gets_the_processors_own_answer() -> None:
    assert run("-c", ASK) != f"-1 {errno.EPERM}"


def test_everything_else_runs() -> None:
    program = (
        "import threading, subprocess, sys, onnxruntime as ort, numpy as np; "
        "thread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join(); "
        "print(subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True).stdout.decode().strip()); "
        "print(ort.get_available_providers()[-1], int((np.ones((64, 64)) @ np.ones((64, 64))).sum()))"
    )
    lines = run("-m", "benchmarks.peers.without_amx", "-c", program).splitlines()
    assert lines == ["thread", "1", "CPUExecutionProvider 262144"]
