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

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")

MAIN = "from whiten_runtime.commands.main import main; main()"
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


def frames(written: str) -> list[str]:
    """Return what stood in a line at one time or another."""
    return [frame for frame in re.split(r"[\r\n]|\x1b\[A", written) if frame.strip()]


def last_screen(written: str) -> list[str]:
    """Return the lines that are left in the end."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", written)
    lines = []
    for line in plain.split("\n"):
        shown = ""
        for frame in line.split("\r"):
            shown = frame + shown[len(frame) :]
        lines.append(shown.rstrip())
    return [line for line in lines if line]


def test_a_bar_shows_the_time_left_and_vanishes() -> None:
    written = on_terminal(REPORT)
    assert re.search(r"\d+%\|.* \d+/4000 \[00:00<00:0\d", written)
    assert last_screen(written) == [
        "· fitting the whitening",
        "warning: a line too long: it was left out",
        "· done",
    ]


@pytest.mark.slow
def test_a_terminal_that_does_not_tell_its_size_gets_a_bar() -> None:
    """Serial consoles and `script` have 0 lines of 0 columns."""
    written = on_terminal(REPORT, columns=0, lines=0)
    assert re.search(r"\d+%\|.* \d+/4000 \[00:00<00:0\d", written)
    assert max(len(frame) for frame in frames(written) if "%" in frame) < 80


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 200])
def test_a_bar_fits_its_line(columns: int) -> None:
    written = on_terminal(REPORT, columns=columns)
    found = [frame for frame in frames(written) if "%" in frame]
    assert found
    assert max(map(len, found)) <= columns


@pytest.mark.slow
def test_colours_are_for_terminals_that_have_them() -> None:
    assert "\x1b[3" in on_terminal(REPORT)
    for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        written = on_terminal(REPORT, variables=variables)
        assert not re.search(r"\x1b\[\d+m", written)
        assert "warning: a line" in written
    assert "\x1b[3" in on_terminal(REPORT, variables={"NO_COLOR": ""})


@pytest.mark.slow
def test_a_terminal_that_cannot_return_to_the_beginning_of_a_line_gets_no_bar() -> None:
    written = on_terminal(REPORT, variables={"TERM": "dumb"})
    assert "\r" not in written
    assert written.splitlines() == [
        "· fitting the whitening",
        "warning: a line too long: it was left out",
        "· done",
    ]


def test_a_pipe_gets_lines_alone() -> None:
    done = subprocess.run([sys.executable, "-c", REPORT], capture_output=True, text=True, check=True, encoding="utf-8")
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "· fitting the whitening",
        "warning: a line too long: it was left out",
        "· done",
    ]


def test_embed_draws_a_bar_on_a_terminal(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a text of some words\n" * 9000)
    arguments = ("embed", tiny_bundle, "--input", tmp_path / "texts.txt", "--out", tmp_path / "out.npy")
    written = on_terminal(MAIN, *arguments)
    assert "texts [00:0" in written
    assert "".join(last_screen(written)).startswith("wrote 9,000 vectors")
    assert on_terminal(MAIN, *arguments, "--quiet", "--force") == ""


def test_quiet_leaves_warnings_and_errors(tiny_bundle: Path, tmp_path: Path) -> None:
    def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", MAIN, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("verify", tiny_bundle).stderr
    done = run("verify", tiny_bundle, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = run("embed", tiny_bundle, "long " * 99, "-q", "--out", tmp_path / "out.npy")
    assert done.stderr.splitlines() == ["warning: 1 of 1 texts were cut to 48 tokens"]
    done = run("verify", tmp_path / "nowhere", "-q")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")


def test_quiet_ends_with_its_command(tiny_bundle: Path) -> None:
    from support.cli import ok

    assert ok("verify", tiny_bundle, "--quiet").stderr == ""
    assert ok("verify", tiny_bundle).stderr
