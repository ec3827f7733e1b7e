"""Share functions between the command lines: messages on stderr, results on stdout, errors in one line."""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

from whiten_runtime.errors import WhitenError
from whiten_runtime.ort.process import unwind_on_sigterm
from whiten_runtime.ort.providers import Provider, parse_provider, silence_log

Command = TypeVar("Command", bound=Callable[..., Any])


def say(message: str) -> None:
    """Print a message for a person, on stderr."""
    click.echo(message, err=True)


def warn(message: str) -> None:
    """Print a warning for a person, on stderr."""
    say(f"{click.style('warning:', fg='yellow', bold=True)} {message}")


def print_json(value: object) -> None:
    """Print one JSON document for a program, on stdout."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def human_size(count: int) -> str:
    """Format a number of bytes for display, in decimal units."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _parse_providers(context: click.Context, option: click.Parameter, values: Sequence[str]) -> tuple[Provider, ...]:
    try:
        return tuple(map(parse_provider, values))
    except WhitenError as error:
        raise click.BadParameter(str(error)) from None


threads_option = click.option("--threads", type=click.IntRange(min=1), help="Threads. [default: all usable CPUs]")
provider_option = click.option(
    "--provider",
    "providers",
    multiple=True,
    callback=_parse_providers,
    metavar="NAME",
    help="onnxruntime execution provider, with its options as NAME:KEY=VALUE,..., or cpu, cuda, cuda:N, openvino, "
    "openvino:bf16; repeatable.",
)

bundle_argument = click.argument("bundle", type=click.Path())
"""A bundle, as text: `locate_bundle` takes a text for a repository of the hub too, and a `Path` for a directory."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")


def one_line_errors(command: Command) -> Command:
    """Turn every error into one line on stderr and an exit code; add --debug, with which it stays a traceback."""

    @functools.wraps(command)
    def guarded(*args: Any, debug: bool, **kwargs: Any) -> Any:
        if debug:
            return command(*args, **kwargs)
        try:
            return command(*args, **kwargs)
        except WhitenError as error:
            _fail(str(error), error.exit_code)
        except MemoryError:
            _fail("out of memory; use a smaller model or batch, or a machine with more memory", 1)
        except BrokenPipeError:
            raise  # click ends quietly: the reader of our output has closed it
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            _fail(f"{place}{error.strerror or error}", 1)
        except click.exceptions.ClickException:
            raise
        except Exception as error:
            _fail(f"unexpected {type(error).__name__}: {error}; run again with --debug and report it", 1)

    option = click.option("--debug", is_flag=True, help="Show a traceback when something goes wrong.")
    return option(guarded)  # type: ignore[return-value]


def run(command: click.Command) -> None:
    """Run a command line with onnxruntime's own log silenced.

    SIGTERM unwinds the stack like Ctrl-C, so that no partly written file remains.
    """
    unwind_on_sigterm()
    silence_log()
    command.main(prog_name=command.name)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align text in columns separated by two spaces."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows])
    return "\n".join(line.rstrip() for line in lines)


def _fail(message: str, code: int) -> None:
    say(f"{click.style('error:', fg='red', bold=True)} {' '.join(message.split())}")
    sys.exit(code)
