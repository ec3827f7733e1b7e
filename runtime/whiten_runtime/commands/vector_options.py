"""Share options and checks between the commands that write files of vectors."""

from pathlib import Path

from whiten_runtime.commands.help import option
from whiten_runtime.errors import UsageError

STDIN = "-"
"""What stands for standard input on the command line."""

header_option = option(
    "--header",
    is_flag=True,
    rare=True,
    help="Begin lines of JSON with one that names the space. Vectors of 8 bits or less always have it.",
)

force_option = option(
    "--force",
    is_flag=True,
    help="Replace a file that whiten has not written. A file of vectors that whiten wrote is replaced anyway.",
)


def check_other_file(out: Path | None, source: str | Path | None) -> None:
    """Check that a command does not write the file that it reads."""
    if out is not None and source is not None and out.is_file() and Path(source).is_file() and out.samefile(source):
        raise UsageError(f"--out is '{out}', which is --input too and would be replaced; name another file")
