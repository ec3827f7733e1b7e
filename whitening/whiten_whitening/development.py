"""Read what `--dev` names, pairs with scores or collections to search, and choose a whitening by it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.records import ChoiceRecord
from whiten_runtime.errors import UsageError, kind_of_place
from whiten_runtime.files.collections import LAYOUT, Collection, has_collections, read_collections
from whiten_runtime.files.pairs import Pairs, read_pairs
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.options import Prompts, searched_by_cosine
from whiten_runtime.reporter import Reporter
from whiten_whitening.choosing import Choice, choose_by_pairs, choose_by_search
from whiten_whitening.maps import Shrinkage, WhiteningMap, WhiteningSpec
from whiten_whitening.moments import Float64Array, Moments
from whiten_whitening.similarity import Judged
from whiten_whitening.statistics import embed_float64, fit

Development = Pairs | tuple[Collection, ...]

ADVISED_PAIRS, ADVISED_QUERIES = 200, 50
"""Numbers of pairs and of queries below which a choice by them is warned of."""

_PAIRS = (".csv", ".jsonl", ".tsv")
_COLLECTION = ("corpus.jsonl", "queries.jsonl")


def read_development(path: Path, report: Reporter) -> Development:
    """Read the collections in a folder, else its file of pairs; or a file of pairs. Report what is used."""
    if kind_of_place(path) != "directory":
        return read_pairs(path)
    files = sorted(file for file in path.iterdir() if file.suffix in _PAIRS and file.name not in _COLLECTION)
    if has_collections(path):
        collections = tuple(read_collections(path, None))
        for collection in collections:
            size = f"{len(collection.queries):,} queries, {len(collection.documents):,} documents"
            report.stage(f"choosing by search of {collection.name}: {size}, qrels/{collection.judgements}")
            for warning in collection.warnings:
                report.warn(warning)
        if files:
            report.stage(f"{files[0]} is not used; to choose by pairs with scores, pass --dev {files[0]}")
        return collections
    if len(files) != 1:
        holds = f"holds {', '.join(file.name for file in files):.80}" if files else "holds no data"
        raise UsageError(f"dev '{path}' {holds}; wanted a file of pairs with scores, or {LAYOUT}")
    report.stage(f"choosing by the pairs of {files[0]}")
    return read_pairs(files[0])


def check_searched(development: Development | None, manifest: Manifest, normalize: bool) -> None:
    """Check that a search by a draft's vectors can be scored, if it is to be."""
    if not isinstance(development, tuple):
        return
    if manifest.route is not None:
        raise UsageError(f"the model has the route {manifest.route} only, but a search needs queries and documents")
    try:
        searched_by_cosine(manifest.similarity_fn_name, normalize)
    except UsageError as error:
        raise UsageError(f"the model {error}; choose by pairs (--dev FILE), or name a whitening") from None


def choose_by_development(
    development: Development,
    moments: Moments,
    dimension: int | None,
    shrinkage: Shrinkage,
    manifest: Manifest,
    normalize: bool,
    embedder: Embedder,
    report: Reporter,
    required: bool = False,
) -> Choice:
    """Embed the texts of `--dev`, and choose the whitening, fitted on moments of a corpus, that suits them best."""

    def fit_spec(spec: WhiteningSpec | None) -> WhiteningMap | None:
        return fit(moments, spec, manifest.pooling == "sif")

    _warn_of_few(development, report)
    if isinstance(development, Pairs):
        first, second = (embed_float64(texts, embedder) for texts in (development.first, development.second))
        return choose_by_pairs(fit_spec, first, second, development.scores, dimension, shrinkage, required)
    by_cosine = searched_by_cosine(manifest.similarity_fn_name, normalize)
    prompts = Prompts.of(manifest)
    with report.bar(
        "texts", sum(len(collection.queries) + len(collection.documents) for collection in development)
    ) as advance:

        def embed(texts: Sequence[str], prompt: str) -> Float64Array:
            options = replace(embedder.options, prompt=prompt, finite=True)
            return embed_float64(texts, embedder, options, advance)

        searches = [_judged(collection, embed, prompts) for collection in development]
    return choose_by_search(fit_spec, searches, by_cosine, dimension, shrinkage, required)


def _warn_of_few(development: Development, report: Reporter) -> None:
    """Warn of fewer pairs or queries than a choice among many whitenings needs."""
    if isinstance(development, Pairs):
        count, advised, what = len(development.scores), ADVISED_PAIRS, "pairs"
    else:
        count, advised, what = sum(len(collection.queries) for collection in development), ADVISED_QUERIES, "queries"
    if count < advised:
        report.warn(f"{count:,} {what} are few to choose a whitening by, {advised} or more are advised")


def _judged(collection: Collection, embed: Callable[[Sequence[str], str], Float64Array], prompts: Prompts) -> Judged:
    rows = {name: row for row, name in enumerate(collection.ids)}
    grades = []
    for query in collection.queries:
        own = collection.relevant[query]
        grades.append({rows.get(name, -place): grade for place, (name, grade) in enumerate(own.items(), 1)})
    return Judged(
        embed(list(collection.queries.values()), prompts.for_task("query")),
        embed([collection.documents[name] for name in rows], prompts.for_task("document")),
        tuple(grades),
        collection.own_rows,
    )


def choice_record(choice: Choice, development: Development | None) -> ChoiceRecord:
    if isinstance(development, tuple):
        records = tuple(collection.record for collection in development)
        return ChoiceRecord(why=choice.why, collections=records, candidates=choice.candidates)
    pairs = None if development is None else development.record
    return ChoiceRecord(why=choice.why, pairs=pairs, candidates=choice.candidates)
