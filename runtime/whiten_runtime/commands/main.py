"""Implement `whiten`, whose commands are the entry points of the group `whiten.commands` in pyproject.toml.

A command's module is imported when the command is used, so that completion and errors of usage come at once.
"""

import difflib
from functools import cache
from importlib.metadata import EntryPoints, entry_points

import click
from click.shell_completion import CompletionItem

from whiten_runtime.commands import console
from whiten_runtime.commands.help import Group, group, option

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
            ctx.fail(f"there is no command '{console.shown(name)}'; {advice}")
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
    console.run(whiten)
