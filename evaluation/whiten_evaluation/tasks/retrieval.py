"""Search documents by the vectors of queries, exactly, and measure what is found by trec_eval's measures."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_evaluation.embedding import WhiteningSource, check_fit
from whiten_evaluation.tasks.sts import RESAMPLES, Difference, Interval, difference_of, interval
from whiten_runtime.bundle.manifest import Manifest, read_manifest
from whiten_runtime.errors import BundleError, UsageError
from whiten_runtime.files.collections import Collection
from whiten_runtime.inference.options import DOCUMENT, QUERY, Prompts, searched_by_cosine
from whiten_runtime.inference.vectors import Nearest
from whiten_whitening.codes.coder import Coder
from whiten_whitening.maps import WhiteningMap, fit_map, fit_sif, whitened
from whiten_whitening.moments import Float64Array, Moments

MEASURES = ("nDCG@10", "MRR@10", "R@10", "R@100", "MAP@100")
"""nDCG with the grade itself as gain; mean reciprocal rank; recall; mean average precision."""

TOP = 100
"""Documents of a query that are looked at."""

BLOCK = 4096
"""Documents that are embedded, stored and compared at once."""

Rows = NDArray[np.float32]

Embed = Callable[[Sequence[str], str, Callable[[int], object]], Rows]
"""Embeds texts with a prompt, and calls a function with the number of texts of each batch."""


class RetrievalScore(msgspec.Struct, frozen=True, kw_only=True):
    """What a bundle scores on a collection, times 100."""

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
class Storage:
    """A way to store the vectors of documents."""

    name: str
    bytes: Callable[[int], int]  # of a vector of so many coordinates
    document: Callable[[Rows], Rows] = lambda rows: rows  # what is read of vectors that were stored
    query: Callable[[Rows], Rows] = lambda rows: rows  # what such vectors are compared with


@dataclass(frozen=True)
class Row:
    """The measures of each query of a collection, [queries], for a bundle and a way to store its vectors."""

    bundle: str
    stored: str
    bytes: int
    measures: Mapping[str, Float64Array]


def storages(bundle: Path, types: Sequence[str], sizes: Sequence[int]) -> list[Storage]:
    """Return float32, and the other ways to store vectors: int8 with a scale a vector, signs, codes of some bytes.

    Raises:
        BundleError: the bundle has no whitening, whose moments codes need.
        UsageError: its vectors do not need so many bytes.
    """
    ways = [Storage("float32", lambda width: 4 * width)]
    if "int8" in types:
        ways.append(Storage("int8", lambda width: width + 4, _int8))
    if "binary" in types:
        ways.append(Storage("binary", lambda width: -(-width // 8), _signs))
    return ways + [_codes(Coder.of(bundle, size)) for size in sizes]


def _int8(rows: Rows) -> Rows:
    steps = np.maximum(np.abs(rows).max(axis=1, keepdims=True) / np.float32(127), np.finfo(np.float32).tiny)
    return np.asarray(np.rint(rows / steps) * steps, np.float32)


def _signs(rows: Rows) -> Rows:
    return np.where(rows > 0, np.float32(1), np.float32(-1))


def _codes(coder: Coder) -> Storage:
    return Storage(
        "codes", lambda width: coder.bytes, lambda rows: coder.decode(coder.encode_array(rows)), coder.transform
    )


def search(
    name: str,
    bundle: Path,
    collection: Collection,
    embed: Embed,
    ways: Sequence[Storage],
    whitening: WhiteningSource,
    advance: Callable[[int], object],
) -> list[Row]:
    """Search a collection by a bundle's vectors, for each way to store those of the documents.

    Documents are embedded and compared in blocks, none of which stays in memory; but where a whitening is fitted on
    them, all vectors do.

    Raises:
        BundleError: the bundle compares vectors otherwise than by cosine or dot product, or takes one of queries and
            documents only.
        UsageError: the documents are too few for the whitening.
    """
    manifest = read_manifest(bundle)
    by_cosine = _by_cosine(bundle, manifest, whitening)
    prompts = Prompts.of(manifest)
    names = sorted(collection.documents)  # of equals, the first id comes first
    queries = embed(list(collection.queries.values()), prompts.for_task(*QUERY), advance)
    texts, prompt = [collection.documents[key] for key in names], prompts.for_task(*DOCUMENT)
    blocks = (embed(part, prompt, advance) for part in _blocks(texts))
    if whitening.fitted:
        vectors = list(blocks)
        fitted = _fit(vectors, manifest, whitening, collection.name)
        queries = _mapped(queries, fitted)
        blocks = (_mapped(rows, fitted) for rows in vectors)
    found = nearest(queries, blocks, ways, by_cosine)
    width = queries.shape[1]
    return [
        Row(name, way.name, way.bytes(width), measured(collection, rows, names))
        for way, rows in zip(ways, found, strict=True)
    ]


def _by_cosine(bundle: Path, manifest: Manifest, whitening: WhiteningSource) -> bool:
    """Return whether vectors are compared by cosine, or else by dot product."""
    if manifest.route is not None:
        raise BundleError(f"{bundle}: holds the route {manifest.route} only; search needs queries and documents")
    try:
        return searched_by_cosine(manifest.similarity_fn_name, manifest.normalize or whitening.fitted)
    except UsageError as error:
        raise BundleError(f"{bundle}: {error}") from None


def _blocks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), BLOCK):
        yield texts[start : start + BLOCK]


def _fit(vectors: Iterable[Rows], manifest: Manifest, whitening: WhiteningSource, what: str) -> WhiteningMap:
    """Fit a whitening on the vectors of all documents."""
    moments = Moments.empty(manifest.unwhitened_width)
    for rows in vectors:
        moments = moments.merge(Moments.of(np.asarray(rows, np.float64)))
    check_fit(moments.n, len(moments.mean), whitening.spec, what)
    try:
        return fit_sif(moments, whitening.spec) if manifest.pooling == "sif" else fit_map(moments, whitening.spec)
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from None


def _mapped(rows: Rows, fitted: WhiteningMap) -> Rows:
    return whitened(np.asarray(rows, np.float64), fitted).astype(np.float32)


def nearest(queries: Rows, blocks: Iterable[Rows], ways: Sequence[Storage], cosine: bool = True) -> list[Nearest]:
    """Return the `TOP` nearest documents of each query for each way to store them; equals are in their order.

    Args:
        queries: vectors, float32 [q, k].
        blocks: vectors of documents, float32 [n, k] each; one is in memory at a time.
        ways: ways to store documents.
        cosine: compare by cosine, or else by dot product.
    """
    wanted = [way.query(queries) for way in ways]
    found, start = [Nearest.empty(len(queries)) for _ in ways], 0
    for rows in blocks:
        found = [
            own.add(asked, way.document(rows), start, TOP, cosine)
            for own, asked, way in zip(found, wanted, ways, strict=True)
        ]
        start += len(rows)
    return found


def measured(collection: Collection, found: Nearest, names: Sequence[str]) -> dict[str, Float64Array]:
    """Return the measures of each query of a collection, [queries], times 100.

    Args:
        collection: queries and judgements.
        found: rows of documents for each query, the nearest first.
        names: ids of the documents, by row.
    """
    import pytrec_eval

    asked = list(collection.queries)
    runs = {
        query: {names[row]: float(TOP - place) for place, row in enumerate(rows)}  # this order, whatever ties say
        for query, rows in zip(asked, found.rows.tolist(), strict=True)
    }
    first = {query: dict(list(run.items())[:10]) for query, run in runs.items()}
    relevant = {query: dict(collection.relevant[query]) for query in asked}
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
