"""Implement `whiten eval retrieval`: search of documents by queries."""

from pathlib import Path
from statistics import fmean

import click

from whiten_evaluation.commands.options import (
    DIFFERENCE_HEADER,
    Cell,
    bundles_argument,
    bytes_option,
    data_option,
    difference_cells,
    locate_bundles,
    show,
)
from whiten_evaluation.embedding import open_embedder, storages
from whiten_evaluation.tasks.retrieval import MEASURES, RetrievalScore, Row, score_rows, search
from whiten_evaluation.tasks.sts import LEVEL
from whiten_runtime.commands.console import command
from whiten_runtime.commands.help import heading, option
from whiten_runtime.commands.progress import ConsoleReporter
from whiten_runtime.errors import needing
from whiten_runtime.files.collections import read_collections

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
    for name, path, ways in located:
        with open_embedder(path) as embed:
            for collection, own_rows in zip(collections, rows_of, strict=True):
                count = len(collection.documents) + len(collection.queries)
                reporter.stage(f"{name}: {collection.name}, {len(collection.documents):,} documents")
                with reporter.bar("texts", count) as advance:
                    own_rows += search(name, path, collection, embed, ways, advance)
    scores = [score_rows(collection, own_rows) for collection, own_rows in zip(collections, rows_of, strict=True)]
    rows = [_cells(score) for of_collection in scores for score in of_collection]
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
        "warnings": reporter.warnings,
    }
    interval = (f"{LEVEL:.0%} from", "to")
    names = ("bundle", "collection", "stored", "bytes", MEASURES[0], *interval, *MEASURES[1:])
    show((*names, *DIFFERENCE_HEADER), rows, document, as_json)


def _cells(score: RetrievalScore) -> list[Cell]:
    first, *others = score.measures.values()
    cells: list[Cell] = [score.bundle, score.collection, score.stored, score.bytes, first]
    return [*cells, score.interval.low, score.interval.high, *others, *difference_cells(score.difference)]
