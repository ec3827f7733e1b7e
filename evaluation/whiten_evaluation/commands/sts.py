"""Implement `whiten eval sts`, `compare` and `codes`: the seven similarity tasks on bundles."""

from pathlib import Path

import click
import msgspec

from whiten_evaluation.commands.options import (
    Cell,
    Run,
    data_option,
    prompt_option,
    running_options,
    tasks_option,
    whitening_options,
)
from whiten_evaluation.embedding import WhiteningSource
from whiten_evaluation.tasks.sts import (
    LEVEL,
    RESAMPLES,
    averages,
    compare_bundles,
    score_codes,
    score_sts,
    task_cosines,
)
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.commands.console import one_line_errors, say
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.errors import UsageError, needing


@command(
    section="Evaluate",
    examples=(
        "whiten eval sts bundles/minilm-l0-l1 --data sts/",
        "whiten eval sts bundles/minilm-l0-l1 --data sts/ --fit-on task --csv",
    ),
)
@one_line_errors
@heading("Data")
@data_option
@tasks_option
@prompt_option
@whitening_options
@running_options
def sts(data: Path, tasks: str | None, whitening: WhiteningSource, run: Run) -> None:
    """Correlate cosines with people's scores of similarity.

    The tasks are STS-B, SICK-R and STS12 to STS16, the score is Spearman's correlation, times 100. mean is the plain
    mean over a task's sub-datasets, as in WhiteningBERT's tables; wmean weighs them by their number of pairs; all is
    one correlation over all pairs.
    """
    benchmark = run.read_sts(data, tasks)
    groups = {task.name: len(task.texts) for task in benchmark.tasks}
    subject = f"{len(benchmark.texts):,} sentences, --fit-on {whitening}"
    rows: list[list[Cell]] = []
    scored = []
    for bundle in run.over(benchmark.texts, whitening, groups, subject):
        scores = score_sts(benchmark, bundle.embed(whitening), whitening)
        scored.append((bundle, scores))
        rows += [[bundle.name, task.name, task.pairs, task.mean, task.wmean, task.all] for task in scores.tasks]
        if len(scores.tasks) > 1:
            label = "average of the seven" if benchmark.complete else f"average of these {len(scores.tasks)}"
            mean, pairs = averages(scores.tasks), sum(task.pairs for task in scores.tasks)
            rows.append([bundle.name, label, pairs, mean["mean"], mean["wmean"], mean["all"]])
    document = {
        "whitening": str(whitening),
        "sentences": len(benchmark.texts),
        "absent": benchmark.absent,
        "files": {
            f"{task.name} {subset.name}": str(subset.file) for task in benchmark.tasks for subset in task.subsets
        },
        "bundles": [
            {"bundle": bundle.name, "seconds": bundle.seconds, **msgspec.to_builtins(scores)}
            for bundle, scores in scored
        ],
    }
    run.show(("bundle", "task", "pairs", "mean", "wmean", "all"), rows, document)


@command(
    section="Evaluate",
    examples=(
        "whiten eval compare bundles/base bundles/base-int8 --data sts/",
        "whiten eval compare bundles/base ORG/NAME --data sts/ --tasks STS-B --json",
    ),
)
@one_line_errors
@heading("Data")
@data_option
@tasks_option
@prompt_option
@whitening_options
@running_options
def compare(data: Path, tasks: str | None, whitening: WhiteningSource, run: Run) -> None:
    """Compare bundles with the first one on the similarity tasks.

    Each difference has a 95 % interval, from a paired bootstrap of 1,000 resamples over the pairs of sentences. A star
    marks an interval without 0.
    """
    if len(run.bundles) < 2:
        raise UsageError(f"one bundle, '{run.bundles[0]}', was given; name two or more to compare")
    with needing("eval"):
        import scipy.stats  # noqa: F401
    benchmark = run.read_sts(data, tasks)
    groups = {task.name: len(task.texts) for task in benchmark.tasks}
    bundles, similarities = [], []
    for bundle in run.over(
        benchmark.texts, whitening, groups, f"{len(benchmark.texts):,} sentences, --fit-on {whitening}"
    ):
        vectors = bundle.embed(whitening)
        width = (whitening.source == "task" and whitening.spec.dimension) or vectors.vectors.shape[1]
        bundles.append((bundle.name, read_manifest(bundle.path), width))
        similarities.append([task_cosines(task, vectors, whitening) for task in benchmark.tasks])
    compared = compare_bundles(benchmark, bundles, similarities)
    rows: list[list[Cell]] = []
    for row in compared:
        cells: list[Cell] = [row.bundle, row.space, row.precision, row.dimension, row.bytes / 1e6]
        cells += [*(task.mean for task in row.tasks), row.average]
        if (behind := row.difference) is None:
            rows.append([*cells, None, None, None, ""])
        else:
            rows.append([*cells, behind.value, behind.low, behind.high, "*" if behind.certain else ""])
    names = [task.name for task in benchmark.tasks]
    last = (f"average of {len(names)}", "difference", f"{LEVEL:.0%} from", "to", "")
    document = {
        "whitening": str(whitening),
        "absent": benchmark.absent,
        "resamples": RESAMPLES,
        "bundles": compared,
    }
    run.show(("bundle", "space", "precision", "dim", "MB", *names, *last), rows, document)
    if len({row.space for row in compared}) > 1:
        say("the bundles are of different spaces: their scores can be compared, their vectors cannot")


@command(
    section="Evaluate",
    examples=(
        "whiten eval codes bundles/minilm-l0-l1 --data sts/",
        "whiten eval codes bundles/minilm-l0-l1 --data sts/ --bytes 64 --csv",
    ),
)
@one_line_errors
@heading("Data")
@data_option
@tasks_option
@prompt_option
@heading("Codes")
@option(
    "--bytes",
    "sizes",
    multiple=True,
    type=click.IntRange(min=1),
    metavar="B",
    help="Bytes of a code. Repeatable. [default: 16, 32, 48, 64, 96, 128 and 192, as far as the vectors need them]",
)
@running_options
def codes(data: Path, tasks: str | None, sizes: tuple[int, ...], run: Run) -> None:
    """Score codes of a few bytes a vector on the STS tasks.

    They are compared with float32, int8 with one scale for each vector, and signs. mean is the mean of the tasks'
    scores in whiten eval sts; float32 is the difference from the float32 vectors. Both texts of a pair are coded. A *
    in the column front marks the best score for so many bytes.
    """
    benchmark, whitening = run.read_sts(data, tasks), WhiteningSource()
    rows: list[list[Cell]] = []
    scored = []
    for bundle in run.over(benchmark.texts, whitening, {}, f"{len(benchmark.texts):,} sentences"):
        if read_manifest(bundle.path).whitening is None:
            run.reporter.warn(
                f"{bundle.path}: has no whitening and stores no moments, so only kinds that need none are scored; "
                "whiten refit BUNDLE --corpus FILE --whitening centre --out OTHER stores them"
            )
        scores = score_codes(bundle.path, benchmark, bundle.embed(whitening), sizes)
        scored.append({"bundle": bundle.name, "codes": scores})
        for one in sorted(scores, key=lambda one: -one.bytes):
            own: list[Cell] = [one.name, one.dims, one.bytes, one.spearman, one.spearman - scores[0].spearman]
            rows.append([bundle.name, *own, "*" if one.front else ""])
    header = ("bundle", "code", "dims", "bytes", "mean", "float32", "front")
    run.show(header, rows, {"sentences": len(benchmark.texts), "absent": benchmark.absent, "bundles": scored})
