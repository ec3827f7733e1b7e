"""`whiten eval compare`: precision, layers and whitening, side by side."""

from pathlib import Path

import click

from whiten_evaluation.commands.options import (
    Cell,
    bundles_argument,
    check_formats,
    data_option,
    evaluation_options,
    session_options,
    show,
)
from whiten_evaluation.commands.sts import tasks_option
from whiten_evaluation.embedding import Source, Whitening, check_bundles, embed_texts
from whiten_evaluation.tasks.bootstrap import LEVEL
from whiten_evaluation.tasks.comparing import Row, compare_bundles
from whiten_evaluation.tasks.sts import task_cosines
from whiten_evaluation.tasks.sts_files import parse_tasks, read_sts
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.commands.console import one_line_errors
from whiten_runtime.commands.console_reporter import ConsoleReporter
from whiten_runtime.errors import UsageError
from whiten_runtime.ort.providers import Provider


@click.command()
@bundles_argument
@data_option
@tasks_option
@click.option(
    "--resamples", type=click.IntRange(min=100), default=1000, show_default=True, help="Of the paired bootstrap."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the bootstrap.")
@evaluation_options
@one_line_errors
def compare(
    bundles: tuple[Path, ...],
    data: Path,
    tasks: str | None,
    resamples: int,
    seed: int,
    source: Source,
    dim: int | None,
    beta: float,
    threads: int | None,
    providers: tuple[Provider, ...],
    as_json: bool,
    as_csv: bool,
) -> None:
    """Score bundles on the similarity tasks, and their differences to the first with 95 % intervals.

    The intervals are those of a paired bootstrap over the pairs of sentences; a star marks those without 0.
    """
    check_formats(as_json, as_csv)
    if len(bundles) < 2:
        raise UsageError(f"one bundle, '{bundles[0]}', was given; name two or more to compare")
    if seed < 0:
        raise UsageError(f"seed is {seed}; wanted 0 or more")
    whitening = Whitening.parse(source, dim, beta)
    reporter = ConsoleReporter()
    found = read_sts(data, parse_tasks(tasks))
    for line in found.missing():
        reporter.warn(line)
    check_bundles(bundles, whitening, {task.name: len(task.texts) for task in found.tasks})
    known = [(path, read_manifest(path)) for path in bundles]
    similarities, described = [], []
    for path, manifest in known:
        reporter.stage(f"{path}: {len(found.texts):,} sentences, whitening {whitening}")
        vectors = embed_texts(path, found.texts, whitening, session_options(providers, threads), reporter)
        similarities.append([task_cosines(task, vectors, whitening) for task in found.tasks])
        width = vectors.vectors.shape[1]
        described.append((path, manifest, whitening.spec.dimension or width if source == "target" else width))
    rows = compare_bundles(found, described, similarities, resamples, seed)
    names = [task.name for task in found.tasks]
    header = (
        "bundle",
        "precision",
        "dim",
        "MB",
        *names,
        f"average of {len(names)}",
        "difference",
        f"{LEVEL:.0%} from",
        "to",
        "",
    )
    document = {
        "whitening": str(whitening),
        "absent": found.absent,
        "resamples": resamples,
        "seed": seed,
        "bundles": rows,
    }
    show(header, [_cells(row) for row in rows], document, as_json, as_csv)


def _cells(row: Row) -> list[Cell]:
    cells: list[Cell] = [row.bundle, row.precision, row.dimension, row.bytes / 1e6]
    cells += [task.mean for task in row.tasks]
    cells.append(row.average)
    if (difference := row.difference) is None:
        return [*cells, None, None, None, ""]
    return [*cells, difference.value, difference.low, difference.high, "*" if difference.certain else ""]
