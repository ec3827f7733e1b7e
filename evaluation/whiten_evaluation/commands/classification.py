"""Implement `whiten eval classification`: SentEval's classification tasks on bundles."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from whiten_evaluation.commands.loop import Embed, Scored, run_evaluation
from whiten_evaluation.commands.options import (
    Cell,
    bundles_argument,
    check_formats,
    data_option,
    prompt_option,
    running_options,
    table_text,
    whitening_options,
)
from whiten_evaluation.embedding import SourceName, WhiteningSource
from whiten_evaluation.tasks.classification import ClassificationScore, classify
from whiten_evaluation.tasks.classification_files import TaskName, read_tasks
from whiten_runtime.checks import needing
from whiten_runtime.commands.console import one_line_errors
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.errors import UsageError
from whiten_runtime.ort.providers import Provider
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import Method, parse_shrinkage

ALL_TASKS: tuple[TaskName, ...] = get_args(TaskName)


class ClassificationEvaluation:
    """Trains and tests logistic regressions on vectors, task by task."""

    def __init__(
        self, folder: Path, names: tuple[TaskName, ...], whitening: WhiteningSource, threads: int | None
    ) -> None:
        self.whitening = whitening
        self._folder = folder
        self._names = names
        self._threads = threads

    def read(self, reporter: Reporter) -> tuple[str, ...]:
        """Read the files, and warn of tasks that are absent.

        Raises:
            UsageError: all tasks are absent.
        """
        self.tasks, self.absent = read_tasks(self._folder, self._names)
        if self.absent:
            told = ", ".join(map(str, self.absent))
            if not self.tasks:
                raise UsageError(f"'{self._folder}' has none of the tasks that were asked for; wanted files of {told}")
            reporter.warn(f"left out, as '{self._folder}' does not have them: {told}")
        self.texts = tuple(dict.fromkeys(text for task in self.tasks for text in task.sentences))
        return self.texts

    def subject(self) -> str:
        """Return the number of sentences and the whitening."""
        return f"{len(self.texts):,} sentences, whitening {self.whitening}"

    def groups(self) -> dict[str, int]:
        """Return the tasks with their numbers of sentences."""
        return {task.name: len(task.sentences) for task in self.tasks}

    def score(self, bundle: Path, embed: Embed, reporter: Reporter) -> list[ClassificationScore]:
        """Train and test a classifier on every task."""
        vectors = embed(self.whitening)
        scores = []
        for task in self.tasks:
            reporter.stage(f"{bundle}: {task.name}")
            scores.append(classify(task, vectors, self.whitening, self._threads, reporter))
        return scores

    def table(self, scored: Sequence[Scored[list[ClassificationScore]]]) -> tuple[Sequence[str], list[list[Cell]]]:
        """Return a row for each bundle, with a column for each task."""
        columns = [label for task in self.tasks for label in (task.name, *([f"{task.name} F1"] if task.pairs else []))]
        rows = [[found.name, *_cells(found.score), _average(found.score)] for found in scored]
        return ("bundle", *columns, "avg"), rows

    def more(self, scored: Sequence[Scored[list[ClassificationScore]]]) -> str | None:
        """Return the table of CR, the customer reviews, where its files are there; None where they are not.

        One row for each bundle: classes are unequal, so that the majority is beside the accuracy, with the spread over
        the ten outer folds and the range of C that their inner folds chose.
        """
        rows = [(found.name, *_reviews(score)) for found in scored for score in found.score if score.task == "CR"]
        if not rows:
            return None
        header = ("CR", "reviews", "majority", "accuracy", "above majority", "lowest fold", "highest fold", "C")
        return table_text(header, rows)

    def document(self, scored: Sequence[Scored[list[ClassificationScore]]], warnings: Sequence[str]) -> dict[str, Any]:
        """Return the scores of each task, with its chosen C and its seconds."""
        return {
            "whitening": str(self.whitening),
            "sentences": len(self.texts),
            "absent": {task.name: task.missing for task in self.absent},
            "warnings": warnings,
            "bundles": [
                {
                    "bundle": found.name,
                    "seconds": {"embed": found.seconds["embed"]},
                    "tasks": found.score,
                    "average": _average(found.score),
                }
                for found in scored
            ],
        }


@command(
    section="Evaluate",
    examples=(
        "whiten eval classification bundles/minilm-l0-l1 --data senteval/",
        "whiten eval classification bundles/minilm-l0-l1 --data senteval/ --tasks MR",
    ),
)
@bundles_argument
@heading("Data")
@data_option
@option(
    "--tasks", metavar="T,T", help=f"Some of the tasks, with commas. They are {','.join(ALL_TASKS)}. [default: all]"
)
@prompt_option
@whitening_options
@running_options
@one_line_errors
def classification(
    bundles: tuple[str, ...],
    data: Path,
    tasks: str | None,
    method: Method,
    shrinkage: str,
    source: SourceName,
    dim: int | None,
    beta: float,
    prompt_name: str | None,
    threads: int | None,
    providers: tuple[Provider, ...],
    as_json: bool,
    as_csv: bool,
) -> None:
    """Classify sentences by logistic regression, as SentEval does.

    It is trained on their vectors; scores are accuracies, times 100. MRPC has the F1 of paraphrases besides; avg is
    the mean accuracy of all seven tasks. CR gets a table of its own: its classes are unequal, so that the majority
    is beside the accuracy, and the spread over its folds.
    """
    check_formats(as_json, as_csv)
    whitening = WhiteningSource.parse(source, dim, beta, method, parse_shrinkage(shrinkage))
    chosen = parse_tasks(tasks)
    with needing("eval"):
        import sklearn  # noqa: F401
    evaluation = ClassificationEvaluation(data, chosen, whitening, threads)
    run_evaluation(evaluation, bundles, providers, threads, as_json, as_csv, prompt_name)


def parse_tasks(text: str | None) -> tuple[TaskName, ...]:
    """Parse names of tasks such as "MR,TREC"; None means all seven. Case does not matter.

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


def _reviews(score: ClassificationScore) -> tuple[Cell, ...]:
    low, high = min(score.strengths), max(score.strengths)
    chosen = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    gain = score.accuracy - score.majority
    return (score.n, score.majority, score.accuracy, f"{gain:+.2f}", min(score.folds), max(score.folds), chosen)


def _average(scores: Sequence[ClassificationScore]) -> float | None:
    return sum(score.accuracy for score in scores) / len(scores) if len(scores) == len(ALL_TASKS) else None
