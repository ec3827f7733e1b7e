"""Test what commands show on a real terminal: progress with the time left, no colours where they are not wanted."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.cli import MAIN, ok, python

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")

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
    assert re.search(r"\d+%\|.* \d+/4000 \[00:00<00:0\d", written)
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
    assert "texts [00:0" in written
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
