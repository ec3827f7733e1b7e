"""Implement `whiten eval sts`: the seven similarity tasks on bundles, and how bundles and codes differ."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from whiten_evaluation.commands.options import (
    DIFFERENCE_HEADER,
    Cell,
    bundles_argument,
    bytes_option,
    data_option,
    difference_cells,
    locate_bundles,
    read_similarity_tasks,
    show,
    tasks_option,
)
from whiten_evaluation.embedding import embed_texts, storages
from whiten_evaluation.tasks.sts import Difference, StsRow, StsScore, score_sts, sts_rows
from whiten_evaluation.tasks.sts_files import SUBSETS
from whiten_runtime.commands.console import command, given_text
from whiten_runtime.commands.help import heading, option
from whiten_runtime.commands.progress import ConsoleReporter


@command(
    section="Measure",
    examples=(
        "whiten eval sts bundles/minilm --data sts/",
        "whiten eval sts bundles/minilm bundles/minilm-int8 --data sts/ --tasks STS-B",
    ),
)
@bundles_argument
@heading("Data")
@data_option
@tasks_option(SUBSETS)
@option(
    "--prompt-name",
    metavar="NAME",
    callback=given_text,
    help="Prompt of the bundle, such as query. Every text gets it. Without it, each bundle's default prompt.",
)
@heading("Storage")
@bytes_option
def sts(
    bundles: tuple[str, ...],
    data: Path,
    tasks: str | None,
    prompt_name: str | None,
    sizes: tuple[int, ...],
    as_json: bool,
) -> None:
    """Correlate cosines with people's scores of similarity.

    The tasks are STS-B, SICK-R and STS12 to STS16, the score is Spearman's correlation, times 100. mean is the plain
    mean over a task's sub-datasets, as in WhiteningBERT's tables; wmean weighs them by their number of pairs; all is
    one correlation over all pairs.

    Of several bundles, and of codes, each row has the difference of its mean to that of the first bundle, with a 95 %
    interval of a paired bootstrap of 1,000 resamples over the pairs. A star marks an interval without 0.
    """
    reporter = ConsoleReporter()
    benchmark = read_similarity_tasks(data, tasks, reporter)
    located = [(name, path, storages(path, (), sizes)) for name, path in locate_bundles(bundles, prompt_name)]
    rows: list[StsRow] = []
    for name, path, ways in located:
        reporter.stage(f"{name}: {len(benchmark.texts):,} sentences")
        rows += sts_rows(benchmark, name, path, embed_texts(path, benchmark.texts, reporter, prompt_name), ways)
    scores = score_sts(benchmark, rows)
    document = {
        "sentences": len(benchmark.texts),
        "absent": benchmark.absent,
        "files": {
            f"{task.name} {subset.name}": str(subset.file) for task in benchmark.tasks for subset in task.subsets
        },
        "bundles": scores,
    }
    header = ("bundle", *(("stored", "bytes") if sizes else ()), "task", "pairs", "mean", "wmean", "all")
    compared = DIFFERENCE_HEADER if len(scores) > 1 else ()
    show((*header, *compared), _rows(scores, benchmark.complete, bool(sizes)), document, as_json)


def _rows(scores: Sequence[StsScore], complete: bool, stored: bool) -> list[list[Cell]]:
    """Return the rows of each task, then those of the average over the tasks, if there are several."""

    def cells(score: StsScore, name: str, pairs: int, values: Iterable[float], behind: Difference | None) -> list[Cell]:
        own = [score.bundle, *((score.stored, score.bytes) if stored else ()), name, pairs, *values]
        return [*own, *(difference_cells(behind) if len(scores) > 1 else ())]

    rows = []
    for place in range(count := len(scores[0].tasks)):
        for score in scores:
            task, behind = score.tasks[place], score.differences[place] if score.differences else None
            rows.append(cells(score, task.name, task.pairs, (task.mean, task.wmean, task.all), behind))
    for score in scores if count > 1 else ():
        name = "average of the seven" if complete else f"average of these {count}"
        pairs = sum(task.pairs for task in score.tasks)
        rows.append(cells(score, name, pairs, score.averages.values(), score.difference))
    return rows
