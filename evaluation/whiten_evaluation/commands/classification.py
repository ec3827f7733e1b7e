"""Implement `whiten eval classification`: SentEval's tasks and RTE on bundles."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import get_args

from whiten_evaluation.commands.options import (
    Cell,
    bundles_argument,
    data_option,
    locate_bundles,
    parse_tasks,
    show,
    tasks_option,
)
from whiten_evaluation.embedding import embed_texts
from whiten_evaluation.tasks.classification import ClassificationScore, classify
from whiten_evaluation.tasks.classification_files import TaskName, read_tasks
from whiten_runtime.commands.console import command
from whiten_runtime.commands.help import heading
from whiten_runtime.commands.progress import ConsoleReporter
from whiten_runtime.errors import UsageError, needing

ALL_TASKS: tuple[TaskName, ...] = get_args(TaskName)
HEADER = ("bundle", "task", "samples", "accuracy", "F1", "majority", "lowest fold", "highest fold")


@command(
    section="Measure",
    examples=(
        "whiten eval classification bundles/minilm --data senteval/",
        "whiten eval classification bundles/minilm --data senteval/ --tasks MR,RTE",
    ),
)
@bundles_argument
@heading("Data")
@data_option
@tasks_option(ALL_TASKS)
def classification(bundles: tuple[str, ...], data: Path, tasks: str | None, as_json: bool) -> None:
    """Classify sentences by logistic regression, as SentEval does.

    The regression is trained on the sentences' vectors. Scores are accuracies, times 100; majority is the accuracy of
    always giving the most frequent class. RTE is not trained: a cosine above 0.5 is entailment. The average is over
    the seven tasks of SentEval.
    """
    chosen = parse_tasks(tasks, ALL_TASKS)
    with needing("eval"):
        import sklearn  # noqa: F401
    reporter = ConsoleReporter()
    classifications, absent = read_tasks(data, chosen)
    if absent:
        missing = ", ".join(f"{name} (no {', no '.join(files)})" for name, files in absent.items())
        if not classifications:
            raise UsageError(f"'{data}' has none of the tasks that were asked for; wanted files of {missing}")
        reporter.warn(f"left out, as '{data}' does not have them: {missing}")
    texts = tuple(dict.fromkeys(text for task in classifications for text in task.sentences))
    scored: list[tuple[str, list[ClassificationScore]]] = []
    for name, path in locate_bundles(bundles):
        reporter.stage(f"{name}: {len(texts):,} sentences")
        vectors, scores = embed_texts(path, texts, reporter), []
        for task in classifications:
            reporter.stage(f"{name}: {task.name}")
            scores.append(classify(task, vectors))
        scored.append((name, scores))
    rows = [_cells(name, scores[place]) for place in range(len(classifications)) for name, scores in scored]
    for name, scores in scored:
        if (mean := average(scores)) is not None:
            rows.append([name, "average of the seven", None, mean, None, None, None, None])
    document = {
        "sentences": len(texts),
        "absent": absent,
        "warnings": reporter.warnings,
        "bundles": [{"bundle": name, "tasks": scores, "average": average(scores)} for name, scores in scored],
    }
    show(HEADER, rows, document, as_json)


def average(scores: Sequence[ClassificationScore]) -> float | None:
    """Return the mean accuracy over the seven tasks of SentEval; None unless all of them were scored."""
    seven = [score.accuracy for score in scores if score.task != "RTE"]
    return fmean(seven) if len(seven) == len(ALL_TASKS) - 1 else None


def _cells(name: str, score: ClassificationScore) -> list[Cell]:
    folds = (min(score.folds), max(score.folds)) if score.folds else (None, None)
    return [name, score.task, score.n, score.accuracy, score.f1, score.majority, *folds]
