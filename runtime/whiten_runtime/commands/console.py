"""Share functions between the command lines: messages on stderr, results on stdout, errors in one line."""

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import msgspec

from whiten_runtime.commands import help as layout
from whiten_runtime.commands.help import option
from whiten_runtime.errors import UsageError, WhitenError, one_line
from whiten_runtime.ort.process import (
    end_by_ctrl_c,
    is_terminal,
    show_user_warnings,
    unwind_on_ctrl_c,
    unwind_on_sigterm,
)
from whiten_runtime.ort.providers import Provider, parse_provider, silence_log

_CTRL_C, _CLOSED_BY_READER = 128 + 2, 128 + 13
"""Exit codes after SIGINT and SIGPIPE, in a shell."""

_QUIET = "whiten.quiet"
"""Key of what --quiet says in the context of a command."""

Command = TypeVar("Command", bound=Callable[..., Any])


def shown(text: str) -> str:
    """Return a text with what a terminal does not show as a character in escapes, such as \\x1b, \\u202e and \\n.

    These are control characters, marks that turn the direction of writing, unpaired surrogates and the like: names in
    files of others could otherwise change what the terminal shows, or what it does.
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def shown_json(document: str) -> str:
    if document.isascii() and "\x7f" not in document:
        return document
    return "".join(
        letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1] for letter in document
    )


def say(message: str, mark: str = "") -> None:
    """Print a message for a person, on stderr, with escapes as in `shown`; nothing with --quiet."""
    if not _is_quiet():
        _print(message, mark)


def warn(message: str) -> None:
    _print(one_line(message), f"{coloured('warning:', 'yellow', True)} ")


def say_written(message: str) -> None:
    """Print what was written and where, on stderr; nothing with --quiet."""
    say(message, f"{coloured('wrote', 'green', True)} ")


def fail_line(message: str) -> None:
    _print(one_line(message), f"{coloured('error:', 'red', True)} ")


def coloured(text: str, colour: str, bold: bool = False) -> str:
    """Return a text in a colour, or as it is where the environment has NO_COLOR or a terminal that has no colours."""
    plain = os.environ.get("NO_COLOR") or _is_dumb()
    return text if plain else click.style(text, fg=colour, bold=bold or None)


def shows_progress() -> bool:
    """Return whether bars can be drawn on stderr: it is a terminal that can return to the beginning of a line."""
    return is_terminal(sys.stderr) and not _is_dumb() and not _is_quiet()


class _StdoutError(Exception):
    """Raised in place of an error of the system while stdout is written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def echo(message: str | bytes, nl: bool = True) -> None:
    try:
        click.echo(message, nl=nl)
    except OSError as error:
        raise _StdoutError(error) from error


def print_json(value: object) -> None:
    echo(shown_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def human_size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def counted(count: int, noun: str) -> str:
    """Format a number of things, such as "1 shard" and "2,000 shards"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def given_text(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Read texts of the command line as UTF-8, whatever the locale says, as those of files and stdin are."""
    if isinstance(value, tuple):
        return tuple(given_text(context, option, text) for text in value)
    if value is None:
        return None
    try:
        return os.fsencode(value).decode("utf-8")
    except UnicodeError:
        beginning = ascii(value if len(value) <= 40 else value[:37] + "...")
        _fail(f"{option.get_error_hint(context)}: {beginning} is not UTF-8; wanted UTF-8, so convert it", 2)


def _parse_providers(context: click.Context, option: click.Parameter, values: Sequence[str]) -> tuple[Provider, ...]:
    try:
        return tuple(map(parse_provider, values))
    except WhitenError as error:
        raise click.BadParameter(str(error)) from None


device_option = option(
    "--device",
    "providers",
    multiple=True,
    callback=_parse_providers,
    metavar="NAME",
    help="Where to compute: cpu, cuda or cuda:1. Others: see whiten doctor. [default: WHITEN_DEVICE, or cpu]",
)

bundle_argument = click.argument("bundle", type=click.Path())
"""A bundle, as text: `locate_bundle` takes a text for a repository of the hub too, and a `Path` for a directory."""

json_option = option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")


def _set_quiet(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    context.meta[_QUIET] = value


quiet_option = option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=_set_quiet,
    help="Print only warnings and errors on stderr.",
)
"""Add --quiet, with which a command prints nothing on stderr but warnings and errors."""


def one_line_errors(command: Command) -> Command:
    """Turn every error into one line on stderr and an exit code; with `whiten --debug` it stays a traceback."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if click.get_current_context().find_root().params.get("debug"):
            return command(*args, **kwargs)
        try:
            return command(*args, **kwargs)
        except WhitenError as error:
            _fail(str(error), error.exit_code)
        except MemoryError:
            _fail("out of memory; use a smaller model or batch, or a machine with more memory", 1)
        except _StdoutError as lost:
            _end_without_stdout(lost.error)
        except OSError as error:
            _fail(f"{error.filename}: {error.strerror}" if error.filename else one_line(error), 1)
        except click.exceptions.ClickException:
            raise
        except Exception as error:
            _fail(f"unexpected {type(error).__name__}: {error}; run it as whiten --debug COMMAND, and report it", 1)

    return guarded  # type: ignore[return-value]


def command(
    name: str | None = None, *, as_json: bool = True, quiet: bool = True, **attributes: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function, whose errors are one line.

    Args:
        name: name of the command; None for that of the function.
        as_json: add --json, which the function gets as `as_json`.
        quiet: add --quiet, with which nothing is printed on stderr but warnings and errors.
        attributes: those of a `help.Command`, such as its examples.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        guarded = one_line_errors(function)
        if quiet:
            guarded = quiet_option(guarded)
        if as_json:
            guarded = json_option(guarded)
        return layout.command(name, **attributes)(guarded)

    return decorate


def run(command: click.Command, name: str | None = None) -> None:
    """Run a command line, perhaps under another name, with onnxruntime's own log silenced.

    Warnings for users are lines like those of `warn`, without a place in the code.
    SIGTERM and Ctrl-C unwind the stack, so that no partly written file remains. After Ctrl-C it ends by SIGINT.
    """
    if sys.stdout is None:
        _fail("stdout is closed, so results would be lost; redirect it to a file, or to /dev/null", 1)
    unwind_on_sigterm()
    unwind_on_ctrl_c()
    silence_log()
    show_user_warnings(warn)
    try:
        command.main(prog_name=name or command.name)
    except OSError as error:  # of --help and --version
        _end_without_stdout(error)
    except SystemExit as end:
        if end.code == _CTRL_C:
            end_by_ctrl_c()
        raise


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align text in columns separated by two spaces, with escapes as in `shown`."""
    header, rows = [shown(cell) for cell in header], [[shown(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows])
    return "\n".join(line.rstrip() for line in lines)


def _is_quiet() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and context.meta.get(_QUIET, False)


def _print(message: str, mark: str) -> None:
    """Print lines on stderr, above a bar if one is drawn there."""
    line = mark + "\n".join(map(shown, message.split("\n")))
    if "tqdm" in sys.modules and shows_progress():
        from tqdm import tqdm

        with tqdm.external_write_mode(file=sys.stderr):
            click.echo(line, err=True)
    else:
        click.echo(line, err=True)


def _is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"


def _end_without_stdout(error: OSError) -> NoReturn:
    """End because stdout cannot be written: in one line, or quietly where its reader has closed it."""
    with contextlib.suppress(OSError, ValueError):  # what is still to be written would fail again at the end
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
    if isinstance(error, BrokenPipeError):
        sys.exit(_CLOSED_BY_READER)
    _fail(f"stdout cannot be written ({error.strerror}), so results are missing; redirect it to a file that can be", 1)


def _fail(message: str, code: int) -> NoReturn:
    fail_line(message)
    sys.exit(code)


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


force_option = option("--force", is_flag=True, help="Replace a file that exists.")

kind_option = option(
    "--kind",
    metavar="KIND",
    help="What --input holds, where its name does not say it: txt, jsonl, csv, tsv or parquet, or one with .gz, .zst, "
    ".bz2 or .xz. [default of stdin: txt]",
)


def check_other_file(out: Path | None, source: str | Path | None) -> None:
    """Check that a command does not write the file that it reads."""
    if out is not None and source is not None and out.is_file() and Path(source).is_file() and out.samefile(source):
        raise UsageError(f"--out is '{out}', which is --input too and would be replaced; name another file")
