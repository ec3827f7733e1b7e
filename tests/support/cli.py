"""Run a command of the project inside the test's own process, and Python in another."""

import subprocess
import sys
from typing import Any

import click
from click.testing import CliRunner, Result

from whiten_runtime.commands.console import whiten


def invoke(command: click.Command, *arguments: object, stdin: str | None = None) -> Result:
    """Run a click command with arguments of any type, and let unexpected exceptions through."""
    return CliRunner().invoke(command, [str(part) for part in arguments], input=stdin, catch_exceptions=False)


def ok(*arguments: object) -> Result:
    """Run `whiten` with arguments that it must accept."""
    result = invoke(whiten, *arguments)
    assert result.exit_code == 0, result.stderr
    return result


def refused(*arguments: object, code: int = 2) -> str:
    """Run `whiten` with arguments that it must refuse in one line on stderr, and return that line."""
    result = invoke(whiten, *arguments)
    errors = [line for line in result.stderr.splitlines() if not line.startswith(("·", "warning: ", "planning "))]
    assert (result.exit_code, len(errors), result.stdout) == (code, 1, ""), result.output
    assert errors[0].startswith("error: ")
    return errors[0]


MAIN = "from whiten_runtime.commands.console import main; main()"
"""The command `whiten`, for a Python of its own."""


def python(code: str, *arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run code in a Python of its own, with options of `subprocess.run`."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, **{"capture_output": True, "text": True, "check": False} | options)
