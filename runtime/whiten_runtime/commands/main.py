"""Implement `whiten`: embed texts with a bundle, show it, verify it. Other packages add subcommands by entry point."""

from importlib.metadata import entry_points

import click
import msgspec

from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.cross_check import check_consistency
from whiten_runtime.bundle.manifest import read_content
from whiten_runtime.bundle.manifest_hash import states_hash
from whiten_runtime.bundle.space import space_of
from whiten_runtime.commands import console
from whiten_runtime.commands.console import (
    bundle_argument,
    json_option,
    one_line_errors,
)
from whiten_runtime.commands.embed import embed
from whiten_runtime.commands.help import Command, Group, group, heading
from whiten_runtime.commands.push import push
from whiten_runtime.commands.sign import sign
from whiten_runtime.commands.similarity import similarity
from whiten_runtime.commands.transform import transform
from whiten_runtime.commands.tune import tune
from whiten_runtime.commands.verify import verify
from whiten_runtime.hub.locating import locate_bundle

COMMAND_GROUP = "whiten.commands"


class _PluginGroup(Group):
    """Groups commands; subcommands may be in packages that the runtime must not import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = (point.name for point in entry_points(group=COMMAND_GROUP))
        return sorted({*super().list_commands(ctx), *names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = super().get_command(ctx, cmd_name)
        if known is not None:
            return known
        for point in entry_points(group=COMMAND_GROUP, name=cmd_name):
            command = point.load()
            assert isinstance(command, click.Command)
            return command
        return None


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
@click.version_option(package_name="whiten", message="%(prog)s, version %(version)s")
def whiten() -> None:
    """Compute whitened sentence embeddings with bundles that whiten-export wrote."""


whiten.add_command(embed)
whiten.add_command(push)
whiten.add_command(sign)
whiten.add_command(similarity)
whiten.add_command(transform)
whiten.add_command(tune)
whiten.add_command(verify)


@whiten.command(
    cls=Command,
    section="Check",
    examples=(
        "whiten info bundles/minilm-l0-l1",
        "whiten info ORG/NAME --json",
    ),
)
@bundle_argument
@heading("Output")
@json_option
@one_line_errors
def info(bundle: str, as_json: bool) -> None:
    """Show what a bundle is: its source, layers, whitening and parity.

    Sizes of files, and what the manifest says against the graph and the other files, are checked; hashes are not.
    """
    from whiten_runtime.commands.info import describe

    path = locate_bundle(bundle)
    opened = open_bundle(path, verify_hashes=False)
    check_consistency(opened)
    manifest = opened.manifest
    if as_json:
        console.print_json(msgspec.structs.replace(manifest, space=space_of(manifest)))
    else:
        click.echo(describe(manifest, states_hash(read_content(path))))


def main() -> None:
    """Run `whiten`."""
    console.run(whiten)
