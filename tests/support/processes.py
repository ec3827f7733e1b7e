"""Running Python programs as users start them."""

import os
import signal
import subprocess
import sys
from pathlib import Path


def python(code: str, bundle: Path, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a program as users do: without the variable CI, with which onnxruntime behaves better.

    Args:
        code: the program.
        bundle: its first argument.
        arguments: those that follow.
        timeout: seconds after which it is killed, with its children, and the test fails.
    """
    kept = {key: value for key, value in os.environ.items() if key != "CI" and not key.startswith("HF_")}
    command = [sys.executable, "-c", code, str(bundle), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=kept, start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # also its children
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
