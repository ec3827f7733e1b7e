"""Lay out the help of commands: options under headings, commands under sections, and examples at the end."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from whiten_runtime.errors import parse_whole

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


def command(name: str | None = None, **attributes: Any) -> Callable[[Callable[..., Any]], Command]:
    """Make a `Command` of a function, as `click.command` does."""
    settings = HELP | attributes.pop("context_settings", {})
    return click.command(name, cls=Command, context_settings=settings, **attributes)


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
