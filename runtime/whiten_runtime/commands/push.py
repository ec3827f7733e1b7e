"""Implement `whiten push`: upload a bundle to the model hub."""

from pathlib import Path

import click

from whiten_runtime.commands.console import command, echo, human_size, print_json, say
from whiten_runtime.commands.help import heading, option
from whiten_runtime.hub.locating import parse_repository
from whiten_runtime.hub.uploading import push_bundle


@command(
    section="Share",
    examples=(
        "whiten push bundles/minilm ORG/NAME",
        "whiten push bundles/minilm ORG/NAME@v2 --private",
    ),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("repository", metavar="ORG/NAME[@BRANCH]")
@heading("Repository")
@option("--private", is_flag=True, help="Create a private repository, and refuse a repository that is public.")
def push(
    bundle: Path,
    repository: str,
    private: bool,
    as_json: bool,
) -> None:
    """Upload a bundle to the model hub.

    BUNDLE is a directory, ORG/NAME a repository; without @BRANCH, its main branch is meant. Repository and branch are
    created if need be. The address of the commit is printed. The hashes of the files that whiten reads are checked
    first. Encoder("ORG/NAME") and every command that takes a bundle then open it from there. The token is that of
    hf auth login, or of HF_TOKEN.
    """
    done = push_bundle(bundle, parse_repository(repository), private)
    say(f"uploaded {len(done.files)} files ({human_size(done.bytes)}) to {repository}")
    if done.removed:
        say(f"removed files of an older bundle: {', '.join(done.removed)}")
    if as_json:
        print_json(done)
    else:
        echo(done.url)
