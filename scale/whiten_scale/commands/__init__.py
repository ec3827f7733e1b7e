"""Options and progress that the commands of bulk work share."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import reduce
from typing import Any

import click

from whiten_runtime.commands.console import counted, drawn_bar, say, shows_progress
from whiten_runtime.commands.help import heading, option
from whiten_runtime.errors import needing
from whiten_runtime.ort.processor import default_threads, thread_count
from whiten_scale.plan import PER_SHARD
from whiten_scale.shard import Advance
from whiten_scale.workers import Work, check_workers, run_items, share_of

_SECONDS = 30.0
"""Seconds between two lines of progress."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _together(*options: Decorator) -> Decorator:
    return lambda command: reduce(lambda wrapped, one: one(wrapped), reversed(options), command)


def input_options(name: str) -> Decorator:
    """Add the options that say what is read: --input or --corpus, and --column."""
    return _together(
        heading("Input"),
        option(
            name,
            "inputs",
            multiple=True,
            required=True,
            metavar="DIR|FILE",
            help="Texts: folders, files, patterns. Patterns have a *, as in texts/*.csv. Files of .txt, .jsonl, .csv, "
            ".tsv (.gz) and .parquet, on disks, s3:// and whatever fsspec knows. Repeatable.",
        ),
        option("--column", metavar="COLUMN", help=f"Column or key of the text in {name}."),
    )


sharing_options = _together(
    heading("Execution"),
    option("--workers", type=click.IntRange(min=1), metavar="N", help="Processes. [default: one for each usable CPU]"),
    option("--share", metavar="K/N", help="Share of this machine: every Nth shard. They are taken from the Kth on."),
    option("--ray", metavar="ADDRESS", help="Run on a cluster of Ray: auto, or its address."),
    option(
        "--texts-per-shard",
        "per_shard",
        type=click.IntRange(min=1),
        metavar="N",
        help=f"Texts of a shard, at most. Without it, as in the plan that is there, or {PER_SHARD:,}.",
    ),
)
"""Add the options that say how the work is shared among processes and machines."""


def check_able(share: str | None, workers: int | None, ray: str | None) -> None:
    """Check the packages, the share K/N and the number of processes here, before anything is read."""
    with needing("scale"):
        import fsspec  # noqa: F401
        import pyarrow  # noqa: F401
    share_of([], share)
    if workers is not None and ray is None:
        thread_count("--workers", workers)


def own_share(everything: Sequence[int], share: str | None, what: str) -> list[int]:
    """Return the items of this machine, and say where it gets none."""
    mine = share_of(everything, share)
    if not mine:
        say(f"--share {share} gets nothing: there are {len(everything):,} {what} in all, for as many machines at most")
    return mine


def do_items(what: str, work: Work, todo: Sequence[int], workers: int | None, ray: str | None) -> None:
    """Do items of a job with progress; `what` is done to records: "embedded" or "fitted"."""
    if not todo:
        return
    total = sum(map(work.records, todo))
    if ray is None:
        count = check_workers(workers, len(todo), default_threads())
        with progress(what, total, counted(count, "worker")) as advance:
            run_items(work, todo, count, advance)
        return
    from whiten_scale.ray import run_on_ray

    with progress(what, total, "Ray") as advance, redirect_stdout(sys.stderr):  # Ray tells of lost nodes on stdout
        run_on_ray(work, todo, ray, workers, advance)


@contextmanager
def progress(what: str, total: int, by: str) -> Iterator[Advance]:
    """Show how many of `total` records are done, and by whom: a bar on a terminal, else a line from time to time."""
    if shows_progress():
        with drawn_bar("records", total, by=by) as bar:
            yield bar.update
        return
    done, begin, last = 0, time.monotonic(), time.monotonic()

    def count_up(count: int) -> None:
        nonlocal done, last
        done += count
        now = time.monotonic()
        if now - last >= _SECONDS:
            last, rate = now, max(done, 0) / (now - begin)
            say(f"{what} {done:,} of {total:,} records, {rate:,.0f} a second, {by}")

    yield count_up
