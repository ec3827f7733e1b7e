"""Implement `whiten fit-many`: fit statistics of many files of texts, with many processes and machines."""

from contextlib import suppress
from pathlib import Path

import click

from whiten_export.corpus.statistics import save_statistics
from whiten_runtime.commands import console
from whiten_runtime.commands.console import (
    bundle_argument,
    counted,
    json_option,
    one_line_errors,
    quiet_option,
    say,
    warn,
)
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.errors import UsageError
from whiten_runtime.files.replacing import check_file_place
from whiten_runtime.hub.locating import locate_bundle
from whiten_scale.commands import check_able, do_items, input_options, sharing_options
from whiten_scale.fitting import merge_ranges, range_name
from whiten_scale.places import Folder
from whiten_scale.plan import PLAN_FILE, plan_job
from whiten_scale.readers import ColumnChoice
from whiten_scale.workers import Work


@command(
    "fit-many",
    section="Make a bundle",
    examples=(
        "whiten fit-many bundles/minilm-l0-l1 --corpus texts/ --out mine.stats",
        "whiten fit-many bundles/minilm-l0-l1 --corpus texts/ --share 1/4 -o all.stats",
    ),
)
@bundle_argument
@input_options("--corpus")
@heading("Output")
@option("-o", "--out", required=True, type=click.Path(path_type=Path), metavar="FILE", help="File of the statistics.")
@json_option
@quiet_option
@sharing_options
@one_line_errors
def fit_many(
    bundle: str,
    inputs: tuple[str, ...],
    column: str | None,
    per_shard: int | None,
    workers: int | None,
    share: slice,
    ray: str | None,
    out: Path,
    as_json: bool,
) -> None:
    """Collect statistics of many files, on one or many machines.

    whiten refit fits a whitening from them. Ranges of the input are computed in parallel and merged in their order, so
    the statistics have the same bits for every number of workers and machines. Ranges are kept in FILE.parts, from
    which the same command resumes.
    """
    check_able(workers, ray)
    if not out.parent.is_dir():
        raise UsageError(f"'{out.parent}' is not a directory; create it first")
    check_file_place(out, "another --out")
    path, parts = locate_bundle(bundle).absolute(), out.absolute().with_name(f"{out.name}.parts")
    columns = ColumnChoice(column)
    job = plan_job(Folder(str(parts)), "fit", path, {}, inputs, columns, per_shard, say, warn)
    work = Work(job=job, bundle=str(path), out=str(parts))
    everything = range(work.items)
    mine = everything[share]
    todo = [number for number in mine if not (parts / range_name(number)).is_file()]
    if len(todo) < len(mine):
        say(f"there already: {counted(len(mine) - len(todo), 'range')}; left: {len(todo):,}")
    do_items("fitted", work, todo, workers, ray)
    missing = sum(not (parts / range_name(number)).is_file() for number in everything)
    if missing:
        lacking = f"{missing:,} of {counted(len(everything), 'range')}"
        say(f"still missing in {parts}: {lacking}; the last machine writes {out}")
        if as_json:
            console.print_json({"out": str(out), "ranges": len(everything), "missing": missing})
        return
    statistics, origin = merge_ranges(job, parts)
    save_statistics(out, statistics, origin)
    if share.step == 1:
        _remove(parts, len(everything))
    say(f"wrote {out}: {statistics.moments.n:,} sentences, {len(statistics.moments.mean)} dimensions")
    if as_json:
        console.print_json(
            {"out": str(out), "sentences": statistics.moments.n, "ranges": len(everything), "missing": 0}
        )


def _remove(parts: Path, ranges: int) -> None:
    """Delete the files of a job, and their directory unless somebody else has put files there."""
    for name in (PLAN_FILE, *map(range_name, range(ranges))):
        (parts / name).unlink(missing_ok=True)
    with suppress(OSError):
        parts.rmdir()
