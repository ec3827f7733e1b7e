"""Implement `whiten fit`: collect statistics of a corpus, in one process, or in shards on many machines."""

from contextlib import suppress
from pathlib import Path

import click

from whiten_runtime.commands import console
from whiten_runtime.commands.console import (
    ConsoleReporter,
    WholeNumber,
    bundle_argument,
    command,
    counted,
    heading,
    option,
    say,
    warn,
)
from whiten_runtime.errors import UsageError, kind_of_place
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.files.replacing import check_file_place
from whiten_runtime.hub import locate_bundle
from whiten_runtime.ort.session import SessionOptions, providers_for
from whiten_scale.commands import check_able, do_items, sharing_options
from whiten_scale.fitting import merge_ranges, range_name
from whiten_scale.places import Folder
from whiten_scale.plan import PLAN_FILE
from whiten_scale.planner import plan_job
from whiten_scale.readers import ColumnChoice
from whiten_scale.workers import Work
from whiten_whitening.measures import average_cosine, iso_score
from whiten_whitening.statistics import Statistics, fit_statistics, save_statistics


@command(
    section="Whitening",
    examples=(
        "whiten fit bundles/minilm --corpus mine.txt --out mine.stats",
        "whiten fit bundles/minilm --corpus texts/ --workers 8 --out all.stats",
    ),
)
@bundle_argument
@heading("Corpus")
@option(
    "--corpus",
    multiple=True,
    metavar="FILE",
    help=f"Sentences to fit on. Files of .txt, .jsonl, .csv, .tsv, .parquet (.gz), or {BUILTIN_CORPUS} for the "
    "built-in English ones; in shards also folders, patterns such as texts/*.csv, s3:// and whatever fsspec knows. "
    "Repeatable.",
)
@option("--column", metavar="COLUMN", help="Column or key of the sentence in --corpus.")
@option(
    "--max-sentences",
    type=WholeNumber(min=1),
    metavar="N",
    help="Use N sentences, spread over the corpus. [default: all]",
)
@heading("Output")
@option("-o", "--out", required=True, type=click.Path(path_type=Path), metavar="FILE", help="File of the statistics.")
@sharing_options("Processes that fit shards. With --share, one for each usable CPU if not named.")
def fit(
    bundle: str,
    corpus: tuple[str, ...],
    column: str | None,
    max_sentences: int | None,
    workers: int | None,
    share: slice,
    ray: str | None,
    force_version: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Collect statistics of a corpus, for whiten refit.

    BUNDLE embeds the corpus. With --workers, --share or --ray, shards of the input are computed in parallel, and the
    statistics have the same bits for every number of workers and machines. What is done is kept in FILE.parts, from
    which the same command resumes.
    """
    if not corpus:
        raise UsageError(f"--corpus is missing; name a file of sentences, or {BUILTIN_CORPUS}")
    in_shards = workers is not None or ray is not None or share.step > 1
    if in_shards:
        if max_sentences is not None:
            raise UsageError("--max-sentences is for one process; leave it out, or --workers, --share and --ray")
        if BUILTIN_CORPUS in corpus:
            raise UsageError(f"{BUILTIN_CORPUS} is for one process; leave --workers, --share and --ray out")
        check_able(workers, ray)
    if kind_of_place(out.parent) != "directory":
        raise UsageError(f"'{out.parent}' is not a directory; create it first")
    check_file_place(out, "another --out")
    path = locate_bundle(bundle)
    if in_shards:
        _fit_shards(path.absolute(), corpus, column, out, workers, share, ray, force_version, as_json)
        return
    options = SessionOptions(providers_for())
    statistics = fit_statistics(path, Corpus(corpus, column, max_sentences), out, options, ConsoleReporter())
    _tell(out, statistics, as_json)


def _fit_shards(
    bundle: Path,
    inputs: tuple[str, ...],
    column: str | None,
    out: Path,
    workers: int | None,
    share: slice,
    ray: str | None,
    force_version: bool,
    as_json: bool,
) -> None:
    """Fit ranges of shards, as far as they are not there, and merge them in their order once all are there."""
    parts = out.absolute().with_name(f"{out.name}.parts")
    job = plan_job(Folder(str(parts)), "fit", bundle, {}, inputs, ColumnChoice(column), say, warn, force_version)
    work = Work(job=job, bundle=str(bundle), out=str(parts))
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
    _tell(out, statistics, as_json, ranges=len(everything), missing=0)


def _tell(out: Path, statistics: Statistics, as_json: bool, **counts: int) -> None:
    moments = statistics.moments
    say(f"wrote {out}: {moments.n:,} sentences, {len(moments.mean)} dimensions")
    if as_json:
        measured = {
            "sentences": moments.n,
            "dimensions": len(moments.mean),
            "iso_score": iso_score(moments.covariance) if moments.n > 1 else None,
            "average_cosine": average_cosine(moments) if moments.n > 1 else None,
        }
        console.print_json({"out": str(out), **measured, **counts, "corpus": statistics.corpus})


def _remove(parts: Path, ranges: int) -> None:
    """Delete the files of a job, and their directory unless somebody else has put files there."""
    for name in (PLAN_FILE, *map(range_name, range(ranges))):
        (parts / name).unlink(missing_ok=True)
    with suppress(OSError):
        parts.rmdir()
