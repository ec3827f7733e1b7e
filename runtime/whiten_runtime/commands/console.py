"""Implement `whiten` and what its commands share: help under headings, messages, results, errors in one line, bars.

The commands are the entry points of the group `whiten.commands` in pyproject.toml. A command's module is imported when
the command is used, so that completion and errors of usage come at once.
"""

import contextlib
import difflib
import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from whiten_runtime.errors import UsageError, WhitenError, one_line, parse_whole
from whiten_runtime.ort.process import (
    end_by_ctrl_c,
    is_terminal,
    show_user_warnings,
    unwind_on_ctrl_c,
    unwind_on_sigterm,
)
from whiten_runtime.ort.session import Provider, parse_provider, silence_log
from whiten_runtime.reporter import Reporter

OTHER = "Other"
"""Heading of the options that are under no other."""

_COLUMN = 24
"""Characters of the first column; an option that is longer has a line of its own."""

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Option(click.Option):
    heading: str | None = None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return completions; of a value that is a file or directory by its metavar, the shell's own."""
        metavar = (self.metavar or "").split("|")
        if isinstance(self.type, click.types.StringParamType) and {"FILE", "DIR"} & set(metavar):
            return [CompletionItem(incomplete, type="file" if "FILE" in metavar else "dir")]
        return super().shell_complete(ctx, incomplete)


option = partial(click.option, cls=Option)
"""Adds an `Option` to a command."""


class WholeNumber(click.IntRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number of a text, as `click.IntRange` does."""
        if isinstance(value, str) and parse_whole(value) is None:
            self.fail(f"'{value}' is not a whole number", param, ctx)
        return super().convert(value, param, ctx)


def heading(name: str) -> Callable[[Decorated], Decorated]:
    """Put the options below it, up to the next heading, under a heading."""

    def headed(command: Decorated) -> Decorated:
        for parameter in getattr(command, "__click_params__", ()):
            if isinstance(parameter, Option) and parameter.heading is None:
                parameter.heading = name
        return command

    return headed


class Command(click.Command):
    def __init__(self, *args: Any, examples: Sequence[str] = (), section: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.section = section

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings, `OTHER` last, with their texts in one column.

        click 8.5 has rows for arguments as well, which the line of usage names already.
        """
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (row := option.get_help_record(ctx)) is not None:
                sections.setdefault(getattr(option, "heading", None) or OTHER, []).append(row)
        last = sections.pop(OTHER, [])
        _write(formatter, {**sections, OTHER: last}, _COLUMN)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line}\n" for line in self.examples))


class Group(Command, click.Group):
    """A group of commands whose help lists them under their sections, in the order in which these are named."""

    def __init__(self, *args: Any, sections: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = tuple(sections)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; say where an option belongs that stands before the command that has it."""
        words = [word for word in args if not word.startswith("-")]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            command: click.Command = self
            path = [ctx.command_path]
            for word in words:  # of which some may be values of options
                inner = command.get_command(ctx, word) if isinstance(command, click.Group) else None
                if inner is None:
                    continue
                command, path = inner, [*path, word]
                if any(error.option_name in option.opts for option in command.params):
                    place = " ".join(path)
                    message = f"{error.option_name} belongs behind the command: {place} {error.option_name}"
                    raise click.UsageError(message, ctx) from None
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {section: [] for section in self.sections}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            assert isinstance(command, Command)
            sections.setdefault(command.section or "Commands", []).append((name, command.get_short_help_str(100)))
        _write(formatter, sections, max(len(name) for rows in sections.values() for name, _ in rows))
        super().format_options(ctx, formatter)


HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of every command, however it is called: click keeps the names of the option at the first call."""


def group(
    name: str | None = None, cls: type[Group] = Group, **attributes: Any
) -> Callable[[Callable[..., Any]], Group]:
    """Make a `Group` of a function, as `click.group` does."""
    return click.group(name, cls=cls, context_settings=HELP, **attributes)


def _write(formatter: click.HelpFormatter, sections: dict[str, list[tuple[str, str]]], column: int) -> None:
    for name, rows in sections.items():
        if rows:
            with formatter.section(name):
                formatter.write_dl([(first.ljust(column), second) for first, second in rows], col_max=column)


_CTRL_C, _CLOSED_BY_READER = 128 + 2, 128 + 13
"""Exit codes after SIGINT and SIGPIPE, in a shell."""

_QUIET = "whiten.quiet"
"""Key of what --quiet says in the context of a command."""


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


def one_line_errors(command: Decorated) -> Decorated:
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
        attributes: those of a `Command`, such as its examples.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        guarded = one_line_errors(function)
        if quiet:
            guarded = quiet_option(guarded)
        if as_json:
            guarded = json_option(guarded)
        settings = HELP | attributes.pop("context_settings", {})
        return click.command(name, cls=Command, context_settings=settings, **attributes)(guarded)

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


@contextlib.contextmanager
def drawn_bar(unit: str, total: int | None, by: str | None = None) -> Iterator[Any]:
    """Draw a bar on stderr that vanishes when it is done; nothing where stderr is no terminal, or is to be quiet."""
    from tqdm import tqdm

    columns, lines = shutil.get_terminal_size()  # 80 and 24 of a terminal that does not tell
    with tqdm(
        total=total,
        unit=f" {unit}",
        desc=by,
        leave=False,
        ncols=columns - 1,
        nrows=lines,
        smoothing=0.05,
        disable=not shows_progress(),
    ) as bar:
        yield bar


class ConsoleReporter(Reporter):
    """Reports to stderr, with progress bars on a terminal; keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def stage(self, text: str) -> None:
        say(text, coloured("· ", "cyan"))

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        warn(text)

    @contextlib.contextmanager
    def bar(self, unit: str, total: int | None) -> Iterator[Callable[[int], object]]:
        """Draw a bar with the time left that vanishes when it is done."""
        with drawn_bar(unit, total) as bar:
            yield bar.update


COMMAND_GROUP = "whiten.commands"


@cache
def _registered() -> EntryPoints:
    """Read them once a process: that goes through the files of every package that is installed."""
    return entry_points(group=COMMAND_GROUP)


class _EntryPoints(Group):
    """Groups the commands that packages register as entry points; the runtime must not import most of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({point.name for point in _registered()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for point in _registered().select(name=cmd_name):
            command = point.load()
            assert isinstance(command, click.Command)
            return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, known, 1)
            advice = f"did you mean {near[0]}?" if near else "see whiten --help"
            ctx.fail(f"there is no command '{shown(name)}'; {advice}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return only the names of the commands, which needs no import of their modules; and the options."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name) for name in self.list_commands(ctx) if name.startswith(incomplete)]


@group(
    "whiten",
    cls=_EntryPoints,
    sections=("Make", "Use", "Check", "Measure", "Whitening", "Share"),
    examples=(
        "whiten export minilm",
        'whiten embed bundles/minilm "A text." "Another text."',
    ),
)
@option("--debug", is_flag=True, help="Show a traceback when a command fails: whiten --debug COMMAND.")
@click.version_option(package_name="whiten")
def whiten(debug: bool) -> None:
    """Embed sentences without PyTorch, with models exported to ONNX."""


def main() -> None:
    run(whiten)
