"""Implement `whiten eval retrieval`: search of documents by queries."""

from pathlib import Path
from statistics import fmean

import click

from whiten_evaluation.commands.options import (
    Cell,
    Run,
    corpus_whitening_options,
    running_options,
)
from whiten_evaluation.embedding import WhiteningSource, open_embedder
from whiten_evaluation.tasks.retrieval import MEASURES, RetrievalScore, Row, score_rows, search, storages
from whiten_evaluation.tasks.sts import LEVEL
from whiten_runtime.commands.console import one_line_errors
from whiten_runtime.commands.help import command, heading, option
from whiten_runtime.errors import UsageError, needing
from whiten_runtime.files.collections import Collection, read_collection, read_collections

_FILE = click.Path(path_type=Path)
TYPES = ("int8", "binary")


@command(
    section="Evaluate",
    examples=(
        "whiten eval retrieval bundles/minilm --data beir/scifact/",
        "whiten eval retrieval bundles/minilm bundles/minilm-l1-l6 --data beir/",
    ),
)
@one_line_errors
@heading("Data")
@option(
    "--data",
    type=_FILE,
    metavar="DIR",
    help="Collections in the layout of BEIR: corpus.jsonl, queries.jsonl, qrels/. Folders in it are searched too.",
)
@option("--split", default="test", show_default=True, metavar="NAME", help="Judgements of --data: qrels/NAME.tsv.")
@option("--queries", type=_FILE, metavar="FILE", help="Queries: .jsonl, .tsv or .csv with _id and text.")
@option("--documents", type=_FILE, metavar="FILE", help="Documents: the same, with or without title.")
@option(
    "--relevant",
    type=_FILE,
    metavar="FILE",
    help="Judgements: .tsv or .csv with query-id, corpus-id and score, or TREC's lines.",
)
@heading("Storage")
@option(
    "--vector-type",
    "types",
    multiple=True,
    type=click.Choice(TYPES),
    metavar="TYPE",
    help="Store the documents' vectors as int8 (one scale for each vector) or binary (signs) too. Repeatable.",
)
@option(
    "--bytes",
    "sizes",
    multiple=True,
    type=click.IntRange(min=1),
    metavar="B",
    help="Store them as codes of B bytes too. Repeatable.",
)
@corpus_whitening_options
@running_options
def retrieval(
    data: Path | None,
    split: str,
    queries: Path | None,
    documents: Path | None,
    relevant: Path | None,
    types: tuple[str, ...],
    sizes: tuple[int, ...],
    whitening: WhiteningSource,
    run: Run,
) -> None:
    """Search documents by queries, and score what is found.

    Queries and documents get the bundle's prompts for them. The search is exact. nDCG@10 weighs documents by their
    grades, as trec_eval does; its 95 % interval, and that of the difference to the first row, come from a paired
    bootstrap of 1,000 resamples over queries. A star marks an interval without 0.
    """
    if sizes and whitening.source != "bundle":
        raise UsageError(f"--bytes needs the bundle's own whitening, but --fit-on is {whitening.source}; leave one out")
    with needing("eval"):
        import pytrec_eval  # noqa: F401
    collections = _read(data, split, queries, documents, relevant)
    for collection in collections:
        if collection.empty:
            run.reporter.warn(
                f"{collection.name}: {collection.empty} documents have no text; they are searched as such"
            )
    groups = {collection.name: len(collection.documents) for collection in collections}
    found: dict[str, list[Row]] = {collection.name: [] for collection in collections}
    for name, path in run.located(whitening, groups):
        ways = storages(path, types, sizes)
        with open_embedder(path, whitening, run.options) as embed:
            for collection in collections:
                count = len(collection.documents) + len(collection.queries)
                run.reporter.stage(f"{name}: {collection.name}, {len(collection.documents):,} documents")
                with run.reporter.bar("texts", count) as advance:
                    found[collection.name] += search(name, path, collection, embed, ways, whitening, advance)
    scores = {collection.name: score_rows(collection, found[collection.name]) for collection in collections}
    rows = [_cells(score) for of_collection in scores.values() for score in of_collection]
    if len(collections) > 1:
        for own in zip(*scores.values(), strict=True):
            means: list[Cell] = [fmean(score.measures[measure] for score in own) for measure in MEASURES]
            first = own[0]
            label = f"average of {len(own)}"
            rows.append([first.bundle, label, first.stored, first.bytes, means[0], None, None, *means[1:], *[None] * 4])
    document = {
        "whitening": str(whitening),
        "collections": [
            {
                "name": collection.name,
                "documents": len(collection.documents),
                "queries": len(collection.queries),
                "unjudged_queries": collection.unjudged,
                "empty_documents": collection.empty,
                "scores": scores[collection.name],
            }
            for collection in collections
        ],
        "warnings": run.reporter.warnings,
    }
    level = f"{LEVEL:.0%} from"
    header = (
        "bundle",
        "collection",
        "stored",
        "bytes",
        MEASURES[0],
        level,
        "to",
        *MEASURES[1:],
        "difference",
        level,
        "to",
        "",
    )
    run.show(header, rows, document)


def _read(
    data: Path | None, split: str, queries: Path | None, documents: Path | None, relevant: Path | None
) -> list[Collection]:
    files = {"--queries": queries, "--documents": documents, "--relevant": relevant}
    absent = [name for name, file in files.items() if file is None]
    if data is not None:
        if len(absent) < len(files):
            given = next(name for name, file in files.items() if file is not None)
            raise UsageError(f"--data and {given} both name what is searched; leave one out")
        return read_collections(data, split)
    if queries is None or documents is None or relevant is None:
        raise UsageError(f"{absent[0]} is missing; give --data DIR, or all of {', '.join(files)}")
    return [read_collection(queries, documents, relevant)]


def _cells(score: RetrievalScore) -> list[Cell]:
    values = list(score.measures.values())
    cells: list[Cell] = [score.bundle, score.collection, score.stored, score.bytes, values[0]]
    cells += [score.interval.low, score.interval.high, *values[1:]]
    if (behind := score.difference) is None:
        return [*cells, None, None, None, ""]
    return [*cells, behind.value, behind.low, behind.high, "*" if behind.certain else ""]
