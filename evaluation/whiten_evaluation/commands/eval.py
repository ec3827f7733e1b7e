"""Implement `whiten eval`: similarity, classification and search by the vectors of bundles."""

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar, get_args

import click

from whiten_evaluation.classification import ClassificationScore, TaskName, classify, read_tasks
from whiten_evaluation.embedding import check_bundles, embed_texts, open_embedder, storages
from whiten_evaluation.retrieval import MEASURES, RetrievalScore, Row, compares_by_cosine, score_rows, search
from whiten_evaluation.sts import LEVEL, SUBSETS, Difference, StsData, StsRow, StsScore, read_sts, score_sts, sts_rows
from whiten_runtime.bundle.manifest import read_manifest
from whiten_runtime.commands import console
from whiten_runtime.commands.console import ConsoleReporter, WholeNumber, command, given_text, heading, option
from whiten_runtime.errors import UsageError, needing
from whiten_runtime.files.judged import read_collections
from whiten_runtime.hub import locate_bundle
from whiten_runtime.reporter import Reporter

Cell = str | int | float | None
_Name = TypeVar("_Name", bound=str)

DIFFERENCE_HEADER = ("difference", f"{LEVEL:.0%} from", "to", "")
"""Names of the columns of `difference_cells`."""

bundles_argument = click.argument("bundles", nargs=-1, required=True, metavar="BUNDLE...", type=click.Path())
data_option = option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the files lie. Folders in it are searched too.",
)
bytes_option = option(
    "--bytes",
    "sizes",
    multiple=True,
    type=WholeNumber(min=1),
    metavar="B",
    help="Store vectors as codes of B bytes too. Repeatable.",
)


def tasks_option(names: Iterable[str]) -> Callable[[Any], Any]:
    return option(
        "--tasks", metavar="T,T", help=f"Some of the tasks, with commas. They are {','.join(names)}. [default: all]"
    )


def parse_tasks(text: str | None, names: Collection[_Name]) -> tuple[_Name, ...]:
    """Parse names of tasks such as "stsb,sts12"; None means all of them. Case, - and _ do not matter."""
    if text is None:
        return tuple(names)
    known = {_plain(name): name for name in names}
    chosen = {_plain(part): part.strip() for part in text.split(",")}
    for plain, part in chosen.items():
        if plain not in known:
            raise UsageError(f"task '{part}' is unknown; wanted some of {','.join(names)}")
    return tuple(name for plain, name in known.items() if plain in chosen)


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "").replace("_", "")


def locate_bundles(names: Iterable[str], prompt_name: str | None = None) -> list[tuple[str, Path]]:
    located = [(name, locate_bundle(name)) for name in names]
    check_bundles((path for _, path in located), prompt_name)
    return located


def read_similarity_tasks(folder: Path, tasks: str | None, report: Reporter, required: bool = True) -> StsData:
    data = read_sts(folder, parse_tasks(tasks, SUBSETS), required)
    for line in data.missing():
        report.warn(line)
    return data


def describe_models(located: Iterable[tuple[str, Path]], *, by_own_similarity: bool = False) -> list[dict[str, Any]]:
    """Return what scores depend on besides the vectors: how much of a text is read, and how vectors are compared."""
    models = []
    for name, path in located:
        manifest = read_manifest(path)
        dot = by_own_similarity and not compares_by_cosine(path, manifest)
        similarity = "dot product" if dot else "cosine"
        models.append({"bundle": name, "max_seq_length": manifest.max_seq_length, "similarity": similarity})
    return models


def difference_cells(behind: Difference | None) -> list[Cell]:
    """Return a difference to the first row, its interval, and a star if it excludes 0; dashes for the first itself."""
    if behind is None:
        return [None, None, None, ""]
    return [behind.value, behind.low, behind.high, "*" if behind.certain else ""]


def show(header: Sequence[str], rows: Sequence[Sequence[Cell]], document: object, as_json: bool) -> None:
    """Print a document for programs, or a table for people: numbers with two decimals, None as a dash."""
    if as_json:
        console.print_json(document)
    else:
        console.echo(console.table(header, [[_shown(cell) for cell in row] for row in rows]))


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:.2f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell


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
        "models": describe_models((name, path) for name, path, _ in located),
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
    rows = [
        _classification_cells(name, scores[place]) for place in range(len(classifications)) for name, scores in scored
    ]
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


def _classification_cells(name: str, score: ClassificationScore) -> list[Cell]:
    folds = (min(score.folds), max(score.folds)) if score.folds else (None, None)
    return [name, score.task, score.n, score.accuracy, score.f1, score.majority, *folds]


TYPES = ("int8", "binary")


@command(
    section="Measure",
    examples=(
        "whiten eval retrieval bundles/minilm --data beir/scifact/",
        "whiten eval retrieval bundles/minilm bundles/minilm-l1-l6 --data beir/",
    ),
)
@bundles_argument
@heading("Data")
@data_option
@option("--split", default="test", show_default=True, metavar="NAME", help="Judgements to use: qrels/NAME.tsv.")
@heading("Storage")
@option(
    "--vector-type",
    "types",
    multiple=True,
    type=click.Choice(TYPES),
    metavar="TYPE",
    help="Store vectors as int8 (one scale for each vector) or binary (signs) too. Repeatable.",
)
@bytes_option
def retrieval(
    bundles: tuple[str, ...],
    data: Path,
    split: str,
    types: tuple[str, ...],
    sizes: tuple[int, ...],
    as_json: bool,
) -> None:
    """Search documents by queries, and score what is found.

    DIR holds collections in BEIR's layout: corpus.jsonl, queries.jsonl, qrels/test.tsv. Queries and documents get the
    bundle's prompts for them. The search is exact. nDCG@10 weighs documents by their grades, as trec_eval does; its 95
    % interval, and that of the difference to the first row, come from a paired bootstrap of 1,000 resamples over
    queries. A star marks an interval without 0.
    """
    with needing("eval"):
        import pytrec_eval  # noqa: F401
    reporter = ConsoleReporter()
    collections = read_collections(data, split)
    for collection in collections:
        for warning in collection.warnings:
            reporter.warn(warning)
    located = [(name, path, storages(path, types, sizes)) for name, path in locate_bundles(bundles)]
    rows_of: list[list[Row]] = [[] for _ in collections]
    models = describe_models(((name, path) for name, path, _ in located), by_own_similarity=True)
    for (name, path, ways), model in zip(located, models, strict=True):
        read = f"{model['max_seq_length']:,} tokens of a text, compared by {model['similarity']}"
        with open_embedder(path) as embed:
            for collection, own_rows in zip(collections, rows_of, strict=True):
                count = len(collection.documents) + len(collection.queries)
                reporter.stage(f"{name}: {collection.name}, {len(collection.documents):,} documents, {read}")
                with reporter.bar("texts", count) as advance:
                    own_rows += search(name, path, collection, embed, ways, advance)
    scores = [score_rows(collection, own_rows) for collection, own_rows in zip(collections, rows_of, strict=True)]
    rows = [_retrieval_cells(score) for of_collection in scores for score in of_collection]
    if len(collections) > 1:
        for own in zip(*scores, strict=True):
            means: list[Cell] = [fmean(score.measures[measure] for score in own) for measure in MEASURES]
            first, label = own[0], f"average of {len(own)}"
            none = difference_cells(None)
            rows.append([first.bundle, label, first.stored, first.bytes, means[0], None, None, *means[1:], *none])
    document = {
        "collections": [
            {
                "name": collection.name,
                "documents": len(collection.documents),
                "queries": len(collection.queries),
                "unjudged_queries": collection.unjudged,
                "empty_documents": collection.empty,
                "scores": of_collection,
            }
            for collection, of_collection in zip(collections, scores, strict=True)
        ],
        "models": models,
        "warnings": reporter.warnings,
    }
    interval = (f"{LEVEL:.0%} from", "to")
    names = ("bundle", "collection", "stored", "bytes", MEASURES[0], *interval, *MEASURES[1:])
    show((*names, *DIFFERENCE_HEADER), rows, document, as_json)


def _retrieval_cells(score: RetrievalScore) -> list[Cell]:
    first, *others = score.measures.values()
    cells: list[Cell] = [score.bundle, score.collection, score.stored, score.bytes, first]
    return [*cells, score.interval.low, score.interval.high, *others, *difference_cells(score.difference)]
