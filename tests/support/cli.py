"""Run a command of the project inside the test's own process."""

import click
from click.testing import CliRunner, Result

from whiten_runtime.commands.main import whiten


def invoke(command: click.Command, *arguments: object, stdin: str | None = None) -> Result:
    """Run a click command with arguments of any type, and let unexpected exceptions through."""
    return CliRunner().invoke(command, [str(part) for part in arguments], input=stdin, catch_exceptions=False)


def ok(*arguments: object) -> Result:
    """Run `whiten` with arguments that it must accept."""
    result = invoke(whiten, *arguments)
    assert result.exit_code == 0, result.stderr
    return result
