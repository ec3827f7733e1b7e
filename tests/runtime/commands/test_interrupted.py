"""Test what Ctrl-C does to a command: it ends by the signal, so that a loop of a shell around it ends, too."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import signal, sys, time
import click
from whiten_runtime.commands import console

if sys.argv[1] == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
else:
    signal.signal(signal.SIGINT, signal.default_int_handler)

seconds = float(sys.argv.pop())
del sys.argv[1:]

@click.command()
@console.one_line_errors
def wait():
    try:
        print("ready", flush=True)
        time.sleep(seconds)
    finally:
        print("unwound")

console.run(wait)
"""


def interrupted(state: str, seconds: float) -> tuple[int, str, str]:
    command = [sys.executable, "-c", PROGRAM, state, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    return process.returncode, out, error


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_unwinds_and_ends_by_the_signal() -> None:
    code, out, error = interrupted("handled", 60)
    assert (code, out.splitlines()[-1]) == (-signal.SIGINT, "unwound")  # a flush that was interrupted is repeated
    assert error == ""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_job_that_ignores_ctrl_c_goes_on() -> None:
    assert interrupted("ignored", 1) == (0, "unwound\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_embed_leaves_nothing(tiny_bundle: Path, tmp_path: Path) -> None:
    """The texts come from a pipe that stays open, so that the command waits when the signal comes."""
    out = tmp_path / "v.jsonl"
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    code += "from whiten_runtime.commands.main import main; print('ready', flush=True); main()"
    command = [sys.executable, "-c", code, "embed", str(tiny_bundle), "--input", "-", "--out", str(out)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert not out.exists()
