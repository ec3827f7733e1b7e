"""Implement `whiten`: embed texts with a bundle, show it, verify it. Other packages add subcommands by entry point.

A command's module is imported when the command is used, so that completion and errors of usage come at once.
"""

import difflib
from collections.abc import Callable
from importlib.metadata import entry_points

import click
from click.shell_completion import CompletionItem

from whiten_runtime.commands import console
from whiten_runtime.commands.help import Group, group

COMMAND_GROUP = "whiten.commands"


def _embed() -> click.Command:
    from whiten_runtime.commands.embed import embed

    return embed


def _info() -> click.Command:
    from whiten_runtime.commands.info import info

    return info


def _push() -> click.Command:
    from whiten_runtime.commands.push import push

    return push


def _sign() -> click.Command:
    from whiten_runtime.commands.sign import sign

    return sign


def _similarity() -> click.Command:
    from whiten_runtime.commands.similarity import similarity

    return similarity


def _transform() -> click.Command:
    from whiten_runtime.commands.transform import transform

    return transform


def _tune() -> click.Command:
    from whiten_runtime.commands.tune import tune

    return tune


def _verify() -> click.Command:
    from whiten_runtime.commands.verify import verify

    return verify


_OWN: dict[str, Callable[[], click.Command]] = {
    "embed": _embed,
    "info": _info,
    "push": _push,
    "sign": _sign,
    "similarity": _similarity,
    "transform": _transform,
    "tune": _tune,
    "verify": _verify,
}
"""Functions that import the commands of this package."""


class _PluginGroup(Group):
    """Groups commands; subcommands may be in packages that the runtime must not import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_OWN, *(point.name for point in entry_points(group=COMMAND_GROUP))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _OWN:
            return _OWN[cmd_name]()
        for point in entry_points(group=COMMAND_GROUP, name=cmd_name):
            command = point.load()
            assert isinstance(command, click.Command)
            return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named, and what follows it.

        Raises:
            click.UsageError: there is no such command; the message names one that is written alike.
        """
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, known, 1)
            advice = f"did you mean {near[0]}?" if near else "see whiten --help"
            ctx.fail(f"there is no command '{console.shown(name)}'; {advice}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands by their names alone, which needs no import of their modules; and the options."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name) for name in self.list_commands(ctx) if name.startswith(incomplete)]


@group(
    "whiten",
    cls=_PluginGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    sections=("Make a bundle", "Embed", "Check", "Evaluate", "Share"),
    examples=(
        "whiten export minilm --layers 0,1",
        'whiten embed bundles/minilm-l0-l1 "A text." "Another text."',
    ),
)
@click.version_option(package_name="whiten")
def whiten() -> None:
    """Compute whitened sentence embeddings with bundles that whiten-export wrote."""


def main() -> None:
    """Run `whiten`."""
    console.run(whiten)
