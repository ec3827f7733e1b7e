"""Lay out the help of commands: options under headings, in one sentence each, and examples; --help-all shows all."""

import inspect
import re
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

OTHER = "Other"
"""Heading of the options that are under no other."""

_HELP_ALL = "Show all options and all that is known about them."
_COLUMN = 24
"""Characters of the first column at most; what is longer has a line of its own."""
_NARROW = 60
"""Columns of a terminal below which every option has a line of its own, and its text is indented below."""
_DEFAULT = re.compile(r"\s*\[default: [^\[\]]*\]\s*$")
_RANGE = re.compile(r"x[<>]|<=?x")

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Option(click.Option):
    """An option of a command, under a heading of its help.

    Its help begins with the sentence that --help shows, and may end with "[default: ...]". What is between them is for
    --help-all and the reference.
    """

    def __init__(self, *args: Any, rare: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rare = rare
        self.heading = ""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return completions; of a value that is a file or directory by its metavar, the shell's own."""
        metavar = (self.metavar or "").split("|")
        if isinstance(self.type, click.types.StringParamType) and {"FILE", "DIR"} & set(metavar):
            return [CompletionItem(incomplete, type="file" if "FILE" in metavar else "dir")]
        return super().shell_complete(ctx, incomplete)


option = partial(click.option, cls=Option)
"""Adds an `Option` to a command."""


def heading(name: str) -> Callable[[Decorated], Decorated]:
    """Put the options below it, up to the next heading, under a heading."""

    def headed(command: Decorated) -> Decorated:
        for parameter in getattr(command, "__click_params__", ()):
            if isinstance(parameter, Option) and not parameter.heading:
                parameter.heading = name
        return command

    return headed


def grouped(parameters: Sequence[click.Parameter]) -> dict[str, list[click.Option]]:
    """Return the options among the parameters of a command by their headings, `OTHER` last."""
    found: dict[str, list[click.Option]] = {}
    for one in parameters:
        if isinstance(one, click.Option) and not one.hidden:
            found.setdefault(getattr(one, "heading", "") or OTHER, []).append(one)
    rest = found.pop(OTHER, [])
    return {**found, OTHER: rest}


def first_sentence(text: str) -> str:
    """Return the first sentence of a text."""
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


class Command(click.Command):
    """A command whose --help fits a screen."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), section: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.section = section
        self.params.append(
            Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all, help=_HELP_ALL)
        )

    def get_help(self, ctx: click.Context) -> str:
        """Return the help, for the width of the terminal, of 80 columns at most."""
        if ctx.terminal_width is None:
            ctx.terminal_width = max(min(shutil.get_terminal_size().columns, 80) - 2, 20)
        return super().get_help(ctx)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first paragraph of the text, or all of it."""
        text = inspect.cleandoc(self.help or "")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text if _HELP_ALL in ctx.meta else text.split("\n\n")[0])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings, with their texts in one column."""
        whole = _HELP_ALL in ctx.meta
        for name, options in grouped(self.get_params(ctx)).items():
            shown = [one for one in options if whole or not getattr(one, "rare", False)]
            records = [(one, one.get_help_record(ctx)) for one in shown]
            rows = [(row[0], row[1] if whole else _brief(row[1], one.help or "")) for one, row in records if row]
            if rows:
                _write_rows(formatter, name, rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, which are not wrapped."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self.examples))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what may follow, with a sentence about each."""
        items = super().shell_complete(ctx, incomplete)
        for item in items:
            item.help = item.help and first_sentence(item.help)
        return items


class Group(Command, click.Group):
    """A group of commands whose --help lists them under their sections, in the order in which these are named."""

    def __init__(self, *args: Any, sections: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = tuple(sections)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options."""
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each command: its name and its first sentence."""
        found: dict[str, list[tuple[str, str]]] = {section: [] for section in self.sections}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                section = getattr(command, "section", "") or "Commands"
                found.setdefault(section, []).append((name, command.get_short_help_str(100)))
        column = max(len(name) for rows in found.values() for name, _ in rows)
        for section, rows in found.items():
            if rows:
                _write_rows(formatter, section, rows, column)


def command(name: str | None = None, **attributes: Any) -> Callable[[Callable[..., Any]], Command]:
    """Make a `Command` of a function, as `click.command` does."""
    return click.command(name, cls=Command, **attributes)


def group(
    name: str | None = None, cls: type[Group] = Group, **attributes: Any
) -> Callable[[Callable[..., Any]], Group]:
    """Make a `Group` of a function, as `click.group` does."""
    return click.group(name, cls=cls, **attributes)


def _show_all(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _brief(shown: str, text: str) -> str:
    """Return the first sentence of an option's text and its default, of what click shows of the option."""
    items = shown[len(text) :].strip().strip("[]").split("; ")  # what click adds
    added = "; ".join(item for item in items if item and not _RANGE.search(item))
    default = _DEFAULT.search(text)
    body = text[: default.start()] if default else text
    parts = [first_sentence(body), default.group().strip() if default else "", f"[{added}]" if added else ""]
    return " ".join(part for part in parts if part)


def _write_rows(
    formatter: click.HelpFormatter, name: str, rows: Sequence[tuple[str, str]], column: int = _COLUMN
) -> None:
    """Write rows of two columns, of which the first is as wide in every section."""
    narrow = formatter.width < _NARROW
    with formatter.section(name):
        if not narrow:
            rows = [(first.ljust(column), second) for first, second in rows]
        formatter.write_dl(rows, col_max=4 if narrow else column)
