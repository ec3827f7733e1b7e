"""Share options and checks between the commands that write files of vectors."""

from pathlib import Path

import click

from whiten_runtime.errors import UsageError

header_option = click.option(
    "--header",
    is_flag=True,
    help="Begin lines of JSON with one that names the space of the vectors; codes of 8 bits or less always have it.",
)

force_option = click.option(
    "--force", is_flag=True, help="Replace --out even if whiten has not written it. [default: only vectors of whiten]"
)


def check_other_file(out: Path | None, source: str | Path | None) -> None:
    """Check that a command does not write the file that it reads."""
    if out is not None and source is not None and out.is_file() and Path(source).is_file() and out.samefile(source):
        raise UsageError(f"--out is '{out}', which is --input too and would be replaced; name another file")
