"""Draw a terminal with commands and their output, as the help and the start page have them."""

import re
from collections.abc import Sequence

from click.testing import CliRunner

from support.charts.svg import label, picture
from whiten_runtime.commands.console import whiten

_LINE, _WIDTH = 18, 880


def session(page: str) -> list[str]:
    """Return the lines of a terminal: the help, an export, and the similarities of three sentences.

    Args:
        page: the start page, whose blocks of output tests compare with what the commands print.
    """
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    texts = [content for kind, content in blocks if kind == "text"]
    snippet = next(content for kind, content in blocks if kind == "python")
    usage = CliRunner().invoke(whiten, ["--help"], prog_name="whiten", terminal_width=80).output
    return [
        "$ whiten --help",
        *usage.partition("\nOther:")[0].splitlines()[2:],
        "",
        "$ whiten-export minilm",
        *texts[0].splitlines(),
        "",
        "$ python",
        *(f">>> {line}" for line in snippet.splitlines() if line),
        *texts[1].splitlines(),
    ]


def draw(page: str) -> str:
    """Return the picture of a terminal; lines with a prompt stand out."""
    lines = session(page)
    return picture("whiten --help, an export, and three sentences compared", _WIDTH, _height(lines), _rows(lines))


def _height(lines: Sequence[str]) -> int:
    return 24 + _LINE * len(lines)


def _rows(lines: Sequence[str]) -> list[str]:
    rows = enumerate(lines, 1)
    kinds = {True: "code title", False: "code faint"}
    return [label(18, 8 + _LINE * n, line, kinds[line.startswith(("$", ">>>"))]) for n, line in rows if line.strip()]
