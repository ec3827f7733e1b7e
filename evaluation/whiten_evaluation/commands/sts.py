"""Implement `whiten eval sts`: the seven similarity tasks on bundles."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from whiten_evaluation.commands.loop import Embed, Scored, run_evaluation
from whiten_evaluation.commands.options import (
    Cell,
    bundles_argument,
    check_formats,
    data_option,
    prompt_option,
    running_options,
    whitening_options,
)
from whiten_evaluation.embedding import SourceName, WhiteningSource
from whiten_evaluation.tasks.sts import StsScores, averages, score_sts
from whiten_evaluation.tasks.sts_files import SUBSETS, parse_tasks, read_sts
from whiten_runtime.commands.console import one_line_errors
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.ort.providers import Provider
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import Method, parse_shrinkage

tasks_option = option(
    "--tasks", metavar="T,T", help=f"Some of the tasks, with commas. They are {','.join(SUBSETS)}. [default: all]"
)


class StsTexts:
    """Reads the similarity tasks for the evaluations that use them."""

    def __init__(self, folder: Path, tasks: tuple[str, ...], whitening: WhiteningSource) -> None:
        self.whitening = whitening
        self._folder = folder
        self._tasks = tasks

    def read(self, reporter: Reporter) -> tuple[str, ...]:
        """Read the files, and warn of those that are absent."""
        self.data = read_sts(self._folder, self._tasks)
        for line in self.data.missing():
            reporter.warn(line)
        return self.data.texts

    def subject(self) -> str:
        """Return the number of sentences and the whitening."""
        return f"{len(self.data.texts):,} sentences, whitening {self.whitening}"

    def groups(self) -> dict[str, int]:
        """Return the tasks with their numbers of sentences."""
        return {task.name: len(task.texts) for task in self.data.tasks}

    def more(self, scored: Sequence[Scored[Any]]) -> str | None:
        """Return no second table."""
        return None


class StsEvaluation(StsTexts):
    """Correlates cosines with people's scores, task by task."""

    def score(self, bundle: Path, embed: Embed, reporter: Reporter) -> StsScores:
        """Score all tasks."""
        return score_sts(self.data, embed(self.whitening), self.whitening)

    def table(self, scored: Sequence[Scored[StsScores]]) -> tuple[Sequence[str], list[list[Cell]]]:
        """Return a row for each task, and their average where there are several."""
        rows: list[list[Cell]] = []
        for found in scored:
            bundle, tasks = found.name, found.score.tasks
            rows += [[bundle, task.name, task.pairs, task.mean, task.wmean, task.all] for task in tasks]
            if len(tasks) > 1:
                label = "average of the seven" if self.data.complete else f"average of these {len(tasks)}"
                mean, pairs = averages(tasks), sum(task.pairs for task in tasks)
                rows.append([bundle, label, pairs, mean["mean"], mean["wmean"], mean["all"]])
        return ("bundle", "task", "pairs", "mean", "wmean", "all"), rows

    def document(self, scored: Sequence[Scored[StsScores]], warnings: Sequence[str]) -> dict[str, Any]:
        """Return the scores, also of sub-datasets, and the files that were read."""
        data = self.data
        return {
            "whitening": str(self.whitening),
            "sentences": len(data.texts),
            "absent": data.absent,
            "files": {f"{task.name} {subset.name}": str(subset.file) for task in data.tasks for subset in task.subsets},
            "bundles": [
                {"bundle": found.name, "seconds": found.seconds, **msgspec.to_builtins(found.score)} for found in scored
            ],
        }


@command(
    section="Evaluate",
    examples=(
        "whiten eval sts bundles/minilm-l0-l1 --data sts/",
        "whiten eval sts bundles/minilm-l0-l1 --data sts/ --whitening target --csv",
    ),
)
@bundles_argument
@heading("Data")
@data_option
@tasks_option
@prompt_option
@whitening_options
@running_options
@one_line_errors
def sts(
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
    """Correlate cosines with people's scores of similarity.

    The tasks are STS-B, SICK-R and STS12 to STS16, the score is Spearman's correlation, times 100. mean averages
    the sub-datasets of a task alike, as WhiteningBERT's tables do; wmean weighs them by their pairs; all takes them
    as one.
    """
    check_formats(as_json, as_csv)
    evaluation = StsEvaluation(
        data, parse_tasks(tasks), WhiteningSource.parse(source, dim, beta, method, parse_shrinkage(shrinkage))
    )
    run_evaluation(evaluation, bundles, providers, threads, as_json, as_csv, prompt_name)
