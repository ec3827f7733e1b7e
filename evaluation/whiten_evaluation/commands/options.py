"""Define what the commands of `whiten eval` share: options, and tables for people, programs and spreadsheets."""

import csv
import io
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, get_args

import click

from whiten_evaluation.embedding import SourceName
from whiten_runtime.commands import console
from whiten_runtime.commands.console import given_text, json_option, provider_option, quiet_option, threads_option
from whiten_runtime.commands.help import heading, option
from whiten_runtime.errors import UsageError
from whiten_runtime.ort.providers import CPU_PROVIDER, Provider
from whiten_runtime.ort.session import SessionOptions
from whiten_whitening.maps import Method

Cell = str | int | float | None

bundles_argument = click.argument("bundles", nargs=-1, required=True, metavar="BUNDLE...", type=click.Path())
data_option = option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the files lie. Folders in it are searched too.",
)
prompt_option = option(
    "--prompt-name",
    metavar="NAME",
    callback=given_text,
    help="Prompt of the bundle, such as query. Every text gets it. Without it, each bundle's default prompt.",
)
csv_option = option("--csv", "as_csv", is_flag=True, help="Print comma-separated values on stdout.")


def whitening_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --whitening, --method, --dim, --beta and --shrinkage to a command, under a heading."""
    options = (
        heading("Whitening"),
        option(
            "--whitening",
            "source",
            type=click.Choice(get_args(SourceName)),
            metavar="WHICH",
            default="bundle",
            show_default=True,
            help="bundle, target or none. The bundle's own; target is fitted on each task's own sentences, as "
            "WhiteningBERT does; or none.",
        ),
        option(
            "--method",
            type=click.Choice(get_args(Method)),
            metavar="NAME",
            default="pca",
            show_default=True,
            help=f"Method of --whitening target. One of {', '.join(get_args(Method))}. In full, they differ by a "
            "rotation only.",
        ),
        option("--dim", type=click.IntRange(min=1), metavar="K", help="Keep the K leading dimensions."),
        option(
            "--beta",
            type=float,
            metavar="B",
            default=1.0,
            show_default=True,
            help="Exponent of --whitening target.",
        ),
        option(
            "--shrinkage",
            default="none",
            show_default=True,
            metavar="none|ledoit-wolf|oas|A",
            help="Shrink its covariance. It is that of --whitening target; A is a weight from 0 to 1.",
        ),
    )
    return reduce(lambda wrapped, one: one(wrapped), reversed(options), command)


def running_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of output and execution to a command, under their headings."""
    options = (
        heading("Output"),
        json_option,
        csv_option,
        quiet_option,
        heading("Execution"),
        threads_option,
        provider_option,
    )
    return reduce(lambda wrapped, one: one(wrapped), reversed(options), command)


def session_options(providers: Sequence[Provider], threads: int | None) -> SessionOptions:
    """Return the options of a session: the given providers, or the CPU, and the number of threads."""
    return SessionOptions(tuple(providers) or (CPU_PROVIDER,), threads)


def check_formats(as_json: bool, as_csv: bool) -> None:
    """Check that only one document is printed to stdout.

    Raises:
        UsageError: both JSON and csv were requested.
    """
    if as_json and as_csv:
        raise UsageError("--json and --csv both write to stdout; choose one")


def table_text(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table for people: numbers with two decimals, None as a dash."""
    return console.table(header, [[_shown(cell) for cell in row] for row in rows])


def show(
    header: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    document: object,
    as_json: bool,
    as_csv: bool,
    more: str | None = None,
) -> None:
    """Print a table for people, the document for programs, or the table's exact numbers as csv.

    Args:
        header: names of the columns.
        rows: cells; the table shows numbers with two decimals, and None as a dash (in csv, None is empty).
        document: the document that --json prints.
        as_json: print the document.
        as_csv: print csv.
        more: a second table for people, which is printed below the first.
    """
    if as_json:
        console.print_json(document)
    elif as_csv:
        stream = io.StringIO(newline="")
        csv.writer(stream, lineterminator="\n").writerows([header, *rows])
        click.echo(stream.getvalue(), nl=False)
    else:
        click.echo(table_text(header, rows) + (f"\n\n{more}" if more else ""))


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:.2f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell
