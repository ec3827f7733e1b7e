"""Implement `whiten eval classification` and `whiten eval rte`."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click

from whiten_evaluation.commands.options import (
    Cell,
    Run,
    data_option,
    prompt_option,
    running_options,
    table_text,
    whitening_options,
)
from whiten_evaluation.embedding import WhiteningSource
from whiten_evaluation.tasks.classification import ClassificationScore, classify, score_entailment
from whiten_evaluation.tasks.classification_files import TaskName, read_entailment, read_tasks
from whiten_runtime.commands.console import one_line_errors
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.errors import UsageError, needing

ALL_TASKS: tuple[TaskName, ...] = get_args(TaskName)


@command(
    section="Evaluate",
    examples=(
        "whiten eval classification bundles/minilm-l0-l1 --data senteval/",
        "whiten eval classification bundles/minilm-l0-l1 --data senteval/ --tasks MR",
    ),
)
@one_line_errors
@heading("Data")
@data_option
@option(
    "--tasks", metavar="T,T", help=f"Some of the tasks, with commas. They are {','.join(ALL_TASKS)}. [default: all]"
)
@prompt_option
@whitening_options
@running_options
def classification(data: Path, tasks: str | None, whitening: WhiteningSource, run: Run) -> None:
    """Classify sentences by logistic regression, as SentEval does.

    The regression is trained on the sentences' vectors. Scores are accuracies, times 100; avg is their mean over all
    seven tasks. MRPC also has the F1 of paraphrases. CR, whose classes are unequal, has a table of its own, with the
    accuracy of always giving the more frequent class and the spread over the folds.
    """
    chosen = parse_tasks(tasks)
    with needing("eval"):
        import sklearn  # noqa: F401
    classifications, absent = read_tasks(data, chosen)
    if absent:
        missing = ", ".join(f"{name} (no {', no '.join(files)})" for name, files in absent.items())
        if not classifications:
            raise UsageError(f"'{data}' has none of the tasks that were asked for; wanted files of {missing}")
        run.reporter.warn(f"left out, as '{data}' does not have them: {missing}")
    texts = tuple(dict.fromkeys(text for task in classifications for text in task.sentences))
    groups: dict[str, int] = {task.name: len(task.sentences) for task in classifications}
    rows: list[list[Cell]] = []
    reviews: list[tuple[Cell, ...]] = []
    documents = []
    for bundle in run.over(texts, whitening, groups, f"{len(texts):,} sentences, --fit-on {whitening}"):
        vectors, scores = bundle.embed(whitening), []
        for task in classifications:
            run.reporter.stage(f"{bundle.name}: {task.name}")
            scores.append(classify(task, vectors, whitening, run.options.threads))
        average = sum(score.accuracy for score in scores) / len(scores) if len(scores) == len(ALL_TASKS) else None
        cells = [cell for score in scores for cell in (score.accuracy, *([] if score.f1 is None else [score.f1]))]
        rows.append([bundle.name, *cells, average])
        reviews += [(bundle.name, *_reviews(score)) for score in scores if score.task == "CR"]
        seconds = {"embed": bundle.seconds["embed"]}
        documents.append({"bundle": bundle.name, "seconds": seconds, "tasks": scores, "average": average})
    columns = [label for task in classifications for label in (task.name, *([f"{task.name} F1"] if task.pairs else []))]
    document = {
        "whitening": str(whitening),
        "sentences": len(texts),
        "absent": absent,
        "warnings": run.reporter.warnings,
        "bundles": documents,
    }
    header = ("CR", "reviews", "majority", "accuracy", "above majority", "lowest fold", "highest fold", "C")
    run.show(("bundle", *columns, "avg"), rows, document, table_text(header, reviews) if reviews else None)


def parse_tasks(text: str | None) -> tuple[TaskName, ...]:
    """Parse names of tasks such as "MR,TREC"; None means all seven. Case does not matter."""
    if text is None:
        return ALL_TASKS
    chosen = [part.strip().upper() for part in text.split(",")]
    for part in chosen:
        if part not in ALL_TASKS:
            raise UsageError(f"task '{part}' is unknown; wanted some of {','.join(ALL_TASKS)}")
    return tuple(name for name in ALL_TASKS if name in chosen)


def _reviews(score: ClassificationScore) -> Sequence[Cell]:
    """Return the cells of CR, whose classes are unequal: the majority beside the accuracy, and the spread of folds."""
    low, high = min(score.strengths), max(score.strengths)
    chosen = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    gain = score.accuracy - score.majority
    return (score.n, score.majority, score.accuracy, f"{gain:+.2f}", min(score.folds), max(score.folds), chosen)


@command(
    section="Evaluate",
    examples=(
        "whiten eval rte bundles/minilm-l0-l1 --data RTE/",
        "whiten eval rte bundles/minilm-l0-l1 --data RTE/ --threshold 0.6",
    ),
)
@one_line_errors
@heading("Data")
@data_option
@option(
    "--threshold",
    type=click.FloatRange(-1, 1),
    default=0.5,
    show_default=True,
    metavar="T",
    help="A cosine above T is entailment.",
)
@prompt_option
@whitening_options
@running_options
def rte(data: Path, threshold: float, whitening: WhiteningSource, run: Run) -> None:
    """Decide entailment by the cosine of two sentences, on RTE.

    The dev split is used; the score is the accuracy, times 100. majority is the accuracy of always giving the more
    frequent answer; entailed is the share of pairs that were decided as entailment.
    """
    pairs, file = read_entailment(data)
    rows: list[list[Cell]] = []
    documents = []
    subject = f"{len(pairs.texts):,} pairs, --fit-on {whitening}"
    for bundle in run.over(pairs.sentences, whitening, {"RTE": len(pairs.sentences)}, subject):
        score = score_entailment(pairs, bundle.embed(whitening), whitening, threshold)
        rows.append([bundle.name, score.n, score.accuracy, score.majority, score.entailed])
        documents.append({"bundle": bundle.name, "score": score})
    document = {"whitening": str(whitening), "threshold": threshold, "file": str(file), "bundles": documents}
    run.show(("bundle", "pairs", "accuracy", "majority", "entailed"), rows, document)
