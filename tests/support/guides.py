"""Read the fenced blocks of a guide, run its commands as a reader would, and compare what they print with the guide."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

RUN = ("bash", "python")
SECONDS = 600.0
"""Time after which the commands of one guide have failed."""

_FENCE = re.compile(r"^(?:<!-- not run: (.+?) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FIGURE = re.compile(r"\b[0-9a-f]{16,64}\b|-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?: (?:B|kB|MB|GB)\b)?")
"""Hashes, figures and sizes, which may differ from those in a guide."""


@dataclass(frozen=True)
class Fence:
    """A fenced block."""

    language: str  # "bash", "python", "text" or another
    content: str  # the lines between the fences
    not_run: str | None = None  # the reason in a comment before the block why a test does not run it


def fences_of(text: str) -> list[Fence]:
    """Return the fenced blocks of a page in order."""
    return [Fence(language, content, reason or None) for reason, language, content in _FENCE.findall(text)]


def commands_of(fences: Sequence[Fence]) -> list[Fence]:
    """Return the blocks that are run."""
    return [fence for fence in fences if fence.language in RUN and fence.not_run is None]


def expected_of(fences: Sequence[Fence]) -> Iterator[tuple[int, str]]:
    """Yield the blocks of output, each with the index of the command block, among those that are run, before it."""
    index = -1
    shown = True
    for fence in fences:
        if fence.language in RUN:
            shown = fence.not_run is None
            index += shown
        elif fence.language == "text" and shown and index >= 0:
            yield index, fence.content


def run_fences(
    fences: Sequence[Fence], folder: Path, scratch: Path, variables: Mapping[str, str]
) -> tuple[int, list[str]]:
    """Run blocks in one shell that is in a folder; return its exit code, and what each block printed."""
    scratch.mkdir(parents=True, exist_ok=True)
    script, output = scratch / "script", scratch / "output"
    script.write_text(_script(fences, scratch), "utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONUNBUFFERED": "1"} | dict(variables)
    with output.open("w") as sink:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", str(script)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    _, *printed = output.read_text("utf-8", errors="replace").split(_MARK)
    return code, printed


def missing_lines(expected: str, printed: str) -> list[str]:
    """Return the lines of a block of output that a command did not print, in this order.

    Figures, sizes and ids may be others, blanks more or fewer; … stands for any text.
    """
    lines = map(_without_figures, printed.splitlines())
    wanted = [line for line in expected.splitlines() if line.strip(" …")]
    patterns = [re.escape(_without_figures(line)).replace("…", ".*") for line in wanted]
    found = [any(re.fullmatch(pattern, line) for line in lines) for pattern in patterns]
    return [line for line, is_there in zip(wanted, found, strict=True) if not is_there]


_MARK = "\x1e\n"


def _script(fences: Sequence[Fence], scratch: Path) -> str:
    lines = []
    for index, fence in enumerate(fences):
        lines.append(r"printf '\x1e\n'")
        if fence.language == "python":
            snippet = scratch / f"snippet{index}.py"
            snippet.write_text(fence.content, "utf-8")
            lines.append(f"python '{snippet}'")
        else:
            lines.append(fence.content)
    return "\n".join(lines) + "\n"


def _without_figures(line: str) -> str:
    return _FIGURE.sub("0", " ".join(line.split()))
