"""Test commands on a real terminal, with and without colours and bars, and interrupted by Ctrl-C."""

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.cli import MAIN, ok, python

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs pseudo-terminals and signals of POSIX")

REPORT = """
import time
from whiten_runtime.commands.console import ConsoleReporter
reporter = ConsoleReporter()
reporter.stage("fitting the whitening")
with reporter.bar("sentences", 4000) as bar:
    for step in range(8):
        time.sleep(0.11)
        bar(500)
        if step == 3:
            reporter.warn("a line too long: it was left out")
reporter.stage("done")
"""


def on_terminal(
    code: str, *arguments: object, columns: int = 80, lines: int = 24, variables: Mapping[str, str] = {}
) -> str:
    """Run Python with stderr and stdout on a terminal of so many columns, and return what it wrote there."""
    import pty

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    unset = ("NO_COLOR", "COLUMNS", "LINES", "TERM")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **variables}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 65536):
            written += part
    except OSError:  # Linux gives EIO where the other end was closed
        pass
    os.close(ours)
    assert process.wait() == 0, written.decode()
    return written.decode().replace("\r\n", "\n")


LINES = ["· fitting the whitening", "warning: a line too long: it was left out", "· done"]


def test_a_bar_shows_the_time_left_beside_lines_in_colour() -> None:
    written = on_terminal(REPORT)
    assert re.search(r"\d+%\|.* \d+/4000 \[\d\d:\d\d<\d\d:\d\d", written)
    assert "\x1b[3" in written


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_and_bars_are_for_terminals_that_have_them(variables: dict[str, str]) -> None:
    written = on_terminal(REPORT, variables=variables)
    assert not re.search(r"\x1b\[\d+m", written)
    assert ("\r" in written) == ("TERM" not in variables)


@pytest.mark.slow
def test_a_terminal_of_no_columns_has_a_bar_too() -> None:
    """Serial consoles and `script` have 0 lines of 0 columns."""
    assert "4000" in on_terminal(REPORT, columns=0, lines=0)


def test_a_pipe_gets_lines_alone() -> None:
    done = python(REPORT, check=True, encoding="utf-8")
    assert (done.stdout, done.stderr.splitlines()) == ("", LINES)


def test_embed_draws_a_bar_on_a_terminal(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a text of some words\n" * 9000)
    arguments = ("embed", tiny_bundle, "--input", tmp_path / "texts.txt", "--out", tmp_path / "out.npy")
    written = on_terminal(MAIN, *arguments)
    assert re.search(r"texts \[\d\d:\d\d", written)
    assert "wrote 9,000 vectors" in written
    assert on_terminal(MAIN, *arguments, "--quiet", "--force") == ""


def test_quiet_leaves_warnings_and_errors(tiny_bundle: Path, tmp_path: Path) -> None:
    assert python(MAIN, "verify", tiny_bundle).stderr
    done = python(MAIN, "verify", tiny_bundle, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = python(MAIN, "embed", tiny_bundle, "long " * 99, "-q", "--out", tmp_path / "out.npy")
    assert (done.stderr.startswith("warning: "), done.stderr.count("\n")) == (True, 1)
    done = python(MAIN, "verify", tmp_path / "nowhere", "-q")
    assert (done.returncode, done.stderr.startswith("error: ")) == (1, True)
    assert ok("verify", tiny_bundle, "--quiet").stderr == ""
    assert ok("verify", tiny_bundle).stderr  # of the same process


@pytest.mark.parametrize("handler", ["default_int_handler", "SIG_IGN"])
def test_ctrl_c_ends_embed_unless_it_is_ignored(tiny_bundle: Path, tmp_path: Path, handler: str) -> None:
    """The texts come from a pipe that stays open, so that the command waits when the signal comes."""
    out = tmp_path / "v.jsonl"
    code = f"import signal; signal.signal(signal.SIGINT, signal.{handler});"
    code += "from whiten_runtime.commands.console import main; print('ready', flush=True); main()"
    command = [sys.executable, "-c", code, "embed", str(tiny_bundle), "--input", "-", "--out", str(out)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        if handler == "SIG_IGN":
            _, error = process.communicate("a text\n", timeout=60)
        else:
            assert process.wait(60) == -signal.SIGINT
            _, error = process.communicate()
    assert "Traceback" not in error
    assert (process.returncode == 0) is out.exists() is (handler == "SIG_IGN")
