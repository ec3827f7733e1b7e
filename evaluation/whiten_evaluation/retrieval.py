"""Search documents by the vectors of queries, exactly, and measure what is found by trec_eval's measures."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from whiten_evaluation.embedding import Embed, Rows, Storage
from whiten_evaluation.sts import RESAMPLES, Difference, Interval, difference_of, interval
from whiten_runtime.bundle.manifest import Manifest, read_manifest
from whiten_runtime.errors import BundleError, UsageError
from whiten_runtime.files.judged import Collection
from whiten_runtime.inference.options import Prompts, searched_by_cosine
from whiten_runtime.inference.vectors import Nearest
from whiten_whitening.measures import without_own
from whiten_whitening.moments import Float64Array

MEASURES = ("nDCG@10", "MRR@10", "R@10", "R@100", "MAP@100")
"""nDCG with the grade itself as gain; mean reciprocal rank; recall; mean average precision."""

TOP = 100
"""Documents of a query that are measured."""

BLOCK = 4096
"""Documents that are embedded, stored and compared at once."""


class RetrievalScore(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the scores of a bundle on a collection, times 100."""

    bundle: str
    collection: str
    stored: str
    """How the vectors of documents are stored, such as "float32" or "codes"."""
    bytes: int
    """Bytes of a document's vector."""
    measures: Mapping[str, float]
    """Means over queries, by the names of `MEASURES`."""
    interval: Interval
    """Interval of nDCG@10."""
    difference: Difference | None
    """nDCG@10 less that of the first row; None for this row itself."""


@dataclass(frozen=True)
class Row:
    """The measures of each query of a collection, [queries], for a bundle and a way to store its vectors."""

    bundle: str
    stored: str
    bytes: int
    measures: Mapping[str, Float64Array]


def search(
    name: str,
    bundle: Path,
    collection: Collection,
    embed: Embed,
    ways: Sequence[Storage],
    advance: Callable[[int], object],
) -> list[Row]:
    """Search a collection by a bundle's vectors, for each way to store those of the documents.

    Documents are embedded and compared in blocks, none of which stays in memory.

    Raises:
        BundleError: the bundle compares vectors otherwise than by cosine or dot product, or takes one of queries and
            documents only.
    """
    manifest = read_manifest(bundle)
    by_cosine = compares_by_cosine(bundle, manifest)
    prompts = Prompts.of(manifest)
    queries = embed(list(collection.queries.values()), prompts.for_task("query"), advance)
    texts, prompt = [collection.documents[key] for key in collection.ids], prompts.for_task("document")
    stored = nearest(queries, (embed(part, prompt, advance) for part in _blocks(texts)), ways, by_cosine)
    width = queries.shape[1]
    return [
        Row(name, way.name, way.bytes(width), measured(collection, rows))
        for way, rows in zip(ways, stored, strict=True)
    ]


def compares_by_cosine(bundle: Path, manifest: Manifest) -> bool:
    """Return whether vectors are compared by cosine, or else by dot product."""
    if manifest.route is not None:
        raise BundleError(f"{bundle}: holds the route {manifest.route} only; search needs queries and documents")
    try:
        return searched_by_cosine(manifest.similarity_fn_name, manifest.normalize)
    except UsageError as error:
        raise BundleError(f"{bundle}: {error}") from None


def _blocks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), BLOCK):
        yield texts[start : start + BLOCK]


def nearest(queries: Rows, blocks: Iterable[Rows], ways: Sequence[Storage], cosine: bool = True) -> list[Nearest]:
    """Return the `TOP` + 1 nearest documents of each query for each way to store them; equals are in their order.

    Args:
        queries: vectors, float32 [q, k].
        blocks: vectors of documents, float32 [n, k] each; one is in memory at a time.
        ways: ways to store documents.
        cosine: compare by cosine, or else by dot product.
    """
    wanted = [way.query(queries) for way in ways]
    nearest_rows, start = [Nearest.empty(len(queries)) for _ in ways], 0
    for rows in blocks:
        nearest_rows = [
            own.add(asked, way.document(rows), start, TOP + 1, cosine)
            for own, asked, way in zip(nearest_rows, wanted, ways, strict=True)
        ]
        start += len(rows)
    return nearest_rows


def measured(collection: Collection, ranking: Nearest) -> dict[str, Float64Array]:
    """Return the measures of each query of a collection, [queries], times 100, without its own document.

    `ranking` has the rows of documents for each query, in the order of `collection.ids`, the nearest first.
    """
    import pytrec_eval

    # Numbers stand for ids, which end at a zero byte in the code of C, and crash it with half a surrogate pair.
    asked = [str(place) for place in range(len(collection.queries))]
    judged = {document for query in collection.queries for document in collection.relevant[query]}
    numbers = {document: str(row) for row, document in enumerate(collection.ids) if document in judged}
    runs = {
        query: {str(row): float(TOP - place) for place, row in enumerate(rows)}  # this order, whatever ties say
        for query, rows in zip(asked, without_own(ranking.rows, collection.own_rows, TOP), strict=True)
    }
    first = {query: dict(list(run.items())[:10]) for query, run in runs.items()}
    relevant = {
        query: {
            numbers.get(document, f"unknown {place}"): grade
            for place, (document, grade) in enumerate(collection.relevant[name].items())
        }
        for query, name in zip(asked, collection.queries, strict=True)
    }
    whole = pytrec_eval.RelevanceEvaluator(relevant, {"ndcg_cut.10", "recall.10,100", "map_cut.100"}).evaluate(runs)
    top = pytrec_eval.RelevanceEvaluator(relevant, {"recip_rank"}).evaluate(first)
    keys = ("ndcg_cut_10", "recip_rank", "recall_10", "recall_100", "map_cut_100")
    return {
        measure: 100 * np.array([(top if key == "recip_rank" else whole)[query][key] for query in asked])
        for measure, key in zip(MEASURES, keys, strict=True)
    }


def score_rows(collection: Collection, rows: Sequence[Row]) -> list[RetrievalScore]:
    """Return the scores of rows and their differences to the first, with the intervals of a paired bootstrap.

    All rows see the same draws of queries (Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 8).
    """
    random, first = np.random.default_rng(0), MEASURES[0]
    columns = np.column_stack([row.measures[first] for row in rows])
    count = len(columns)
    draws = np.array([columns[random.integers(count, size=count)].mean(axis=0) for _ in range(RESAMPLES)]).T
    means = [{measure: float(row.measures[measure].mean()) for measure in MEASURES} for row in rows]
    return [
        RetrievalScore(
            bundle=row.bundle,
            collection=collection.name,
            stored=row.stored,
            bytes=row.bytes,
            measures=means[index],
            interval=interval(draws[index]),
            difference=difference_of(means[index][first] - means[0][first], draws[index] - draws[0]) if index else None,
        )
        for index, row in enumerate(rows)
    ]
