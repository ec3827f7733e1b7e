"""Options and progress that the commands of bulk work share."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, redirect_stdout
from functools import reduce
from typing import Any

import click

from whiten_runtime.commands.console import WholeNumber, counted, drawn_bar, heading, option, say, shows_progress
from whiten_runtime.errors import needing, parse_whole
from whiten_runtime.ort.processor import default_threads, thread_count
from whiten_scale.workers import Work, run_items

_SECONDS = 30.0
"""Seconds between two lines of progress."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _parse_share(context: click.Context, parameter: click.Parameter, text: str) -> slice:
    """Return the items of the machine K of N: every Nth one, from the Kth on."""
    first, count = (parse_whole(part) for part in text.partition("/")[::2])
    if first is None or count is None or not 1 <= first <= count:
        raise click.BadParameter(f"'{text}'; wanted K/N, with K from 1 to N")
    return slice(first - 1, None, count)


def sharing_options(workers: str) -> Decorator:
    """Add the options that say how the work is shared among processes and machines; `workers` is for a help."""
    options = (
        heading("Execution"),
        option("--workers", type=WholeNumber(min=1), metavar="N", help=workers),
        option(
            "--share",
            metavar="K/N",
            default="1/1",
            callback=_parse_share,
            help="Share of this machine: every Nth shard. They are taken from the Kth on. Without it, all.",
        ),
        option("--ray", metavar="ADDRESS", help="Run on a cluster of Ray: auto, or its address."),
        option("--force-version", is_flag=True, help="Go on with a job that another version began."),
    )
    return lambda command: reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def check_able(workers: int | None, ray: str | None) -> None:
    """Check the packages, and the number of processes of this machine, before anything is read or written."""
    with needing("scale"):
        import fsspec  # noqa: F401
        import pyarrow  # noqa: F401
    if workers is not None and ray is None:
        thread_count("--workers", workers)


def do_items(what: str, work: Work, todo: Sequence[int], workers: int | None, ray: str | None) -> None:
    """Do items of a job, and show progress: a bar on a terminal, else a line from time to time.

    `what` is done to records: "embedded" or "fitted".
    """
    if not todo:
        return
    if ray is None:
        count = min(workers or default_threads(), len(todo))
        by, done = counted(count, "worker"), run_items(work, todo, count)
    else:
        from whiten_scale.ray import run_on_ray

        by, done = "Ray", run_on_ray(work, todo, ray, workers)
    total, records = sum(map(work.records, todo)), 0
    begin = last = time.monotonic()
    # Ray tells of lost nodes on stdout.
    with redirect_stdout(sys.stderr), drawn_bar("records", total, by=by) as bar, closing(done):
        for item in done:
            bar.update(added := work.records(item))
            records += added
            now = time.monotonic()
            if not shows_progress() and now - last >= _SECONDS:
                last = now
                say(f"{what} {records:,} of {total:,} records, {records / (now - begin):,.0f} a second, {by}")
