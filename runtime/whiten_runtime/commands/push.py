"""Implement `whiten push`: upload a bundle to the model hub."""

from pathlib import Path

import click

from whiten_runtime.commands.console import human_size, json_option, one_line_errors, print_json, say
from whiten_runtime.hub.names import parse_repository
from whiten_runtime.hub.uploading import Destination, push_bundle


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("repository", metavar="ORG/NAME")
@click.option("--private", is_flag=True, help="Create a private repository; refuse one that is public.")
@click.option("--revision", metavar="BRANCH", help="Branch to upload to. [default: main]")
@click.option("--message", metavar="TEXT", help="Message of the commit. [default: Upload NAME]")
@click.option(
    "--create/--no-create", default=True, show_default=True, help="Create the repository and the branch if need be."
)
@json_option
@one_line_errors
def push(
    bundle: Path,
    repository: str,
    private: bool,
    revision: str | None,
    message: str | None,
    create: bool,
    as_json: bool,
) -> None:
    """Upload BUNDLE, a directory, to the repository ORG/NAME of the model hub, and print the address of the commit.

    The hashes of the files that whiten reads are checked first. Encoder("ORG/NAME") and every command that takes a
    bundle then open it from there. The token is that of hf auth login, or of HF_TOKEN.
    """
    done = push_bundle(bundle, Destination(parse_repository(repository, revision), private, create, message))
    say(f"uploaded {len(done.files)} files ({human_size(done.bytes)}) to {repository}")
    if done.removed:
        say(f"removed files of an older bundle: {', '.join(done.removed)}")
    if as_json:
        print_json(done)
    else:
        click.echo(done.url)
