"""`whiten eval sts`: the seven similarity tasks on bundles."""

import time
from pathlib import Path
from typing import Any

import click
import msgspec

from whiten_evaluation.commands.options import (
    Cell,
    bundles_argument,
    check_formats,
    data_option,
    evaluation_options,
    session_options,
    show,
)
from whiten_evaluation.embedding import Source, Whitening, check_bundles, embed_texts
from whiten_evaluation.tasks.sts import averages, score_sts
from whiten_evaluation.tasks.sts_files import SUBSETS, parse_tasks, read_sts
from whiten_runtime.commands.console import one_line_errors
from whiten_runtime.commands.console_reporter import ConsoleReporter
from whiten_runtime.ort.providers import Provider

tasks_option = click.option(
    "--tasks", metavar="T,T", help=f"Some of {','.join(SUBSETS)}. [default: all that are there]"
)


@click.command()
@bundles_argument
@data_option
@tasks_option
@evaluation_options
@one_line_errors
def sts(
    bundles: tuple[Path, ...],
    data: Path,
    tasks: str | None,
    source: Source,
    dim: int | None,
    beta: float,
    threads: int | None,
    providers: tuple[Provider, ...],
    as_json: bool,
    as_csv: bool,
) -> None:
    """Correlate cosines with people's scores on STS-B, SICK-R and STS12 to STS16: Spearman, times 100.

    mean averages the sub-datasets of a task alike, as WhiteningBERT's tables do; wmean weighs them by their pairs; all
    takes them as one.
    """
    check_formats(as_json, as_csv)
    whitening = Whitening.parse(source, dim, beta)
    reporter = ConsoleReporter()
    found = read_sts(data, parse_tasks(tasks))
    for line in found.missing():
        reporter.warn(line)
    check_bundles(bundles, whitening, {task.name: len(task.texts) for task in found.tasks})
    rows: list[list[Cell]] = []
    documents: list[dict[str, Any]] = []
    for bundle in bundles:
        started = time.monotonic()
        reporter.stage(f"{bundle}: {len(found.texts):,} sentences, whitening {whitening}")
        vectors = embed_texts(bundle, found.texts, whitening, session_options(providers, threads), reporter)
        embedded = time.monotonic()
        scores = score_sts(found, vectors, whitening)
        seconds = {"embed": embedded - started, "score": time.monotonic() - embedded}
        for task in scores.tasks:
            rows.append([str(bundle), task.name, task.pairs, task.mean, task.wmean, task.all])
        if len(scores.tasks) > 1:
            label = "average of the seven" if found.complete else f"average of these {len(scores.tasks)}"
            mean = averages(scores.tasks)
            pairs = sum(task.pairs for task in scores.tasks)
            rows.append([str(bundle), label, pairs, mean["mean"], mean["wmean"], mean["all"]])
        documents.append({"bundle": str(bundle), "seconds": seconds, **msgspec.to_builtins(scores)})
    document = {
        "whitening": str(whitening),
        "sentences": len(found.texts),
        "absent": found.absent,
        "files": {f"{task.name} {subset.name}": str(subset.file) for task in found.tasks for subset in task.subsets},
        "bundles": documents,
    }
    show(("bundle", "task", "pairs", "mean", "wmean", "all"), rows, document, as_json, as_csv)
