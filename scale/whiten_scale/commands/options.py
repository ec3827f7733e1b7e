"""Share options between the commands of bulk work."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import click

from whiten_scale.plan import PER_SHARD


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what is read, and how it is shared among processes and machines."""
    options = (
        click.option(
            "--input",
            "inputs",
            multiple=True,
            required=True,
            metavar="DIR|FILE",
            help="Texts: directories, files and patterns with *, of .txt, .jsonl, .csv, .tsv (.gz) and .parquet, on "
            "disks, s3:// and whatever fsspec knows. Repeatable.",
        ),
        click.option("--column", help="Column or key of the text."),
        click.option(
            "--per-shard",
            type=click.IntRange(min=1),
            metavar="N",
            help=f"Records of a shard, at most. [default: those of the plan that is there, or {PER_SHARD}]",
        ),
        click.option("--workers", type=click.IntRange(min=1), help="Processes. [default: one for each usable CPU]"),
        click.option("--shard", metavar="K/N", help="The share of this machine: every Nth shard, from the Kth on."),
        click.option("--ray", metavar="ADDRESS", help="Run on a cluster of Ray instead: auto, or its address."),
    )
    return reduce(lambda wrapped, option: option(wrapped), reversed(options), command)
