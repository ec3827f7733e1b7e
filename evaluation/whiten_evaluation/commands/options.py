"""Define what the commands of `whiten eval` share: options, the bundles, and what is printed."""

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from whiten_evaluation.embedding import check_bundles
from whiten_evaluation.tasks.sts import LEVEL, Difference
from whiten_evaluation.tasks.sts_files import SUBSETS, StsData, read_sts
from whiten_runtime.commands import console
from whiten_runtime.commands.help import WholeNumber, option
from whiten_runtime.errors import UsageError
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.reporter import Reporter

Cell = str | int | float | None
_Name = TypeVar("_Name", bound=str)

DIFFERENCE_HEADER = ("difference", f"{LEVEL:.0%} from", "to", "")
"""Names of the columns of `difference_cells`."""

bundles_argument = click.argument("bundles", nargs=-1, required=True, metavar="BUNDLE...", type=click.Path())
data_option = option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the files lie. Folders in it are searched too.",
)
bytes_option = option(
    "--bytes",
    "sizes",
    multiple=True,
    type=WholeNumber(min=1),
    metavar="B",
    help="Store vectors as codes of B bytes too. Repeatable.",
)


def tasks_option(names: Iterable[str]) -> Callable[[Any], Any]:
    return option(
        "--tasks", metavar="T,T", help=f"Some of the tasks, with commas. They are {','.join(names)}. [default: all]"
    )


def parse_tasks(text: str | None, names: Collection[_Name]) -> tuple[_Name, ...]:
    """Parse names of tasks such as "stsb,sts12"; None means all of them. Case, - and _ do not matter."""
    if text is None:
        return tuple(names)
    known = {_plain(name): name for name in names}
    chosen = {_plain(part): part.strip() for part in text.split(",")}
    for plain, part in chosen.items():
        if plain not in known:
            raise UsageError(f"task '{part}' is unknown; wanted some of {','.join(names)}")
    return tuple(name for plain, name in known.items() if plain in chosen)


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "").replace("_", "")


def locate_bundles(names: Iterable[str], prompt_name: str | None = None) -> list[tuple[str, Path]]:
    located = [(name, locate_bundle(name)) for name in names]
    check_bundles((path for _, path in located), prompt_name)
    return located


def read_similarity_tasks(folder: Path, tasks: str | None, report: Reporter, required: bool = True) -> StsData:
    data = read_sts(folder, parse_tasks(tasks, SUBSETS), required)
    for line in data.missing():
        report.warn(line)
    return data


def difference_cells(behind: Difference | None) -> list[Cell]:
    """Return a difference to the first row, its interval, and a star if it excludes 0; dashes for the first itself."""
    if behind is None:
        return [None, None, None, ""]
    return [behind.value, behind.low, behind.high, "*" if behind.certain else ""]


def show(header: Sequence[str], rows: Sequence[Sequence[Cell]], document: object, as_json: bool) -> None:
    """Print a document for programs, or a table for people: numbers with two decimals, None as a dash."""
    if as_json:
        console.print_json(document)
    else:
        console.echo(console.table(header, [[_shown(cell) for cell in row] for row in rows]))


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:.2f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell
