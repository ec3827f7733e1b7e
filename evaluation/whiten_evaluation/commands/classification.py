"""`whiten eval classification`: SentEval's classification tasks on bundles."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

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
from whiten_evaluation.embedding import Source, Whitening, check_bundles, embed_texts
from whiten_evaluation.tasks.classification import ClassificationScore, classify
from whiten_evaluation.tasks.classification_files import TaskName, read_tasks
from whiten_runtime.checks import needing
from whiten_runtime.commands.console import one_line_errors
from whiten_runtime.commands.console_reporter import ConsoleReporter
from whiten_runtime.errors import UsageError
from whiten_runtime.ort.providers import Provider

ALL_TASKS: tuple[TaskName, ...] = get_args(TaskName)


@click.command()
@bundles_argument
@data_option
@click.option("--tasks", metavar="T,T", help=f"Some of {','.join(ALL_TASKS)}. [default: all that are there]")
@evaluation_options
@one_line_errors
def classification(
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
    """Classify sentences by logistic regression on their vectors, as SentEval does: accuracy, times 100.

    MRPC has the F1 of paraphrases besides; avg is the mean accuracy of all seven tasks.
    """
    check_formats(as_json, as_csv)
    whitening = Whitening.parse(source, dim, beta)
    chosen = parse_tasks(tasks)
    with needing("eval"):
        import sklearn  # noqa: F401
    reporter = ConsoleReporter()
    found, absent = read_tasks(data, chosen)
    if absent:
        told = ", ".join(map(str, absent))
        if not found:
            raise UsageError(f"'{data}' has none of the tasks that were asked for; wanted files of {told}")
        reporter.warn(f"left out, as '{data}' does not have them: {told}")
    texts = tuple(dict.fromkeys(text for task in found for text in task.sentences))
    check_bundles(bundles, whitening, {task.name: len(task.sentences) for task in found})
    rows: list[list[Cell]] = []
    documents: list[dict[str, Any]] = []
    for bundle in bundles:
        started = time.monotonic()
        reporter.stage(f"{bundle}: {len(texts):,} sentences, whitening {whitening}")
        vectors = embed_texts(bundle, texts, whitening, session_options(providers, threads), reporter)
        embedding = time.monotonic() - started
        scores: list[ClassificationScore] = []
        for task in found:
            reporter.stage(f"{bundle}: {task.name}")
            scores.append(classify(task, vectors, whitening, threads, reporter))
        average = _average(scores)
        rows.append([str(bundle), *_cells(scores), average])
        documents.append({"bundle": str(bundle), "seconds": {"embed": embedding}, "tasks": scores, "average": average})
    document = {
        "whitening": str(whitening),
        "sentences": len(texts),
        "absent": {task.name: task.missing for task in absent},
        "warnings": reporter.warnings,
        "bundles": documents,
    }
    columns = [label for task in found for label in (task.name, *([f"{task.name} F1"] if task.pairs else []))]
    show(("bundle", *columns, "avg"), rows, document, as_json, as_csv)


def parse_tasks(text: str | None) -> tuple[TaskName, ...]:
    """Parse "MR,TREC"; all seven for None. Case does not matter.

    Raises:
        UsageError: there is no such task.
    """
    if text is None:
        return ALL_TASKS
    chosen = [part.strip().upper() for part in text.split(",")]
    for part in chosen:
        if part not in ALL_TASKS:
            raise UsageError(f"task '{part}' is unknown; wanted some of {','.join(ALL_TASKS)}")
    return tuple(name for name in ALL_TASKS if name in chosen)


def _cells(scores: Sequence[ClassificationScore]) -> list[Cell]:
    return [cell for score in scores for cell in (score.accuracy, *([] if score.f1 is None else [score.f1]))]


def _average(scores: Sequence[ClassificationScore]) -> float | None:
    return sum(score.accuracy for score in scores) / len(scores) if len(scores) == len(ALL_TASKS) else None
