"""Share options between the commands of bulk work."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import click

from whiten_runtime.commands.help import heading, option
from whiten_scale.plan import PER_SHARD


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what is read."""
    options = (
        heading("Input"),
        option(
            "--input",
            "inputs",
            multiple=True,
            required=True,
            metavar="DIR|FILE",
            help="Texts: folders, files, patterns. Patterns have a *, as in texts/*.csv. Files of .txt, .jsonl, .csv, "
            ".tsv (.gz) and .parquet, on disks, s3:// and whatever fsspec knows. Repeatable.",
        ),
        option("--column", metavar="COLUMN", help="Column or key of the text."),
    )
    return reduce(lambda wrapped, one: one(wrapped), reversed(options), command)


def sharing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how the work is shared among processes and machines."""
    options = (
        heading("Execution"),
        option(
            "--workers",
            type=click.IntRange(min=1),
            metavar="N",
            help="Processes. [default: one for each usable CPU]",
        ),
        option(
            "--shard", metavar="K/N", help="Share of this machine: every Nth shard. They are taken from the Kth on."
        ),
        option("--ray", metavar="ADDRESS", help="Run on a cluster of Ray: auto, or its address."),
        option(
            "--per-shard",
            type=click.IntRange(min=1),
            metavar="N",
            rare=True,
            help=f"Records of a shard, at most. Without it, those of the plan that is there, or {PER_SHARD:,}.",
        ),
    )
    return reduce(lambda wrapped, one: one(wrapped), reversed(options), command)
