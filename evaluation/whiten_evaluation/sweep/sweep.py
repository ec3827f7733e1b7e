"""Run a sweep from end to end: embed the texts once with every layer, then score combinations of layers."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from whiten_evaluation.sts import StsData
from whiten_evaluation.sweep.layers import embed_layers, open_graph
from whiten_evaluation.sweep.scoring import Combination, Row, Score, Scorer, best_scores, rank, scored_combinations
from whiten_export.proof.reference import Composition
from whiten_export.sources.model import resolve_layers
from whiten_export.sources.open_model import choose_max_seq_length, find_checkpoint, open_model
from whiten_runtime.bundle.manifest import Manifest, Pooling
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import BUILTIN_CORPUS, builtin_sentences
from whiten_runtime.files.judged import Collection
from whiten_runtime.inference.options import Prompts, searched_by_cosine
from whiten_runtime.ort.process import map_in_threads
from whiten_runtime.ort.processor import default_threads
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import ADVISED_RATIO, WhiteningSpec, check_sample_count

_SHOWN = 10
"""Rows of the table of search."""


@dataclass(frozen=True)
class SweepPlan:
    model: str  # name, directory or hub id, as for an export
    data: StsData
    collections: tuple[Collection, ...]
    cache: Path  # folder in which graphs and vectors are kept
    layers: tuple[int, ...] | None = None  # None for all
    options: SessionOptions = field(default_factory=SessionOptions)
    trust_remote_code: bool = False


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    checkpoint: str | None
    weights_sha256: str
    layers: tuple[int, ...]
    pooling: Pooling
    width: int
    max_seq_length: int
    tasks: tuple[str, ...]
    sentences: int
    corpus: str
    """Name of the corpus of the whitening "corpus"."""
    corpus_sentences: int
    similarity: tuple[Score, ...]
    best: tuple[Row, ...]
    """The best combination up to each highest layer, the best of all first; of two layers, every score."""
    collections: tuple[str, ...]
    by_cosine: bool
    """Whether the search compared vectors by cosine, or else by dot product; see `Scorer.search`."""
    search: tuple[Score, ...]


def run_sweep(plan: SweepPlan, report: Reporter) -> Sweep:
    """Score combinations of a model's layers on similarity tasks, and single layers and pairs in search."""
    report.stage(f"finding {plan.model}")
    checkpoint = find_checkpoint(plan.model, plan.trust_remote_code)
    if checkpoint.kind == "words":
        raise UsageError(f"'{plan.model}' is word vectors, which have one layer; nothing to sweep over")
    model = open_model(checkpoint, plan.trust_remote_code)
    layers = resolve_layers(plan.layers or model.layers, model.record.num_hidden_layers, model.layers)
    if len(layers) < 2:
        raise UsageError(f"'{plan.model}' was left with layer {layers[0]} alone; a sweep needs two or more")
    width = Composition(layers, checkpoint.pooling).pooled_width(model.record.hidden_size)
    length = choose_max_seq_length(model, None)
    by_cosine = not plan.collections or _by_cosine(plan.model, model.draft)
    for task in plan.data.tasks:
        try:
            check_sample_count(len(task.texts), width, WhiteningSpec())
        except UsageError:
            report.warn(
                f"{task.name} is not scored whitened, nor is an average with it: {len(task.texts):,} sentences for "
                f"{width} dimensions are too few; choose others with --tasks"
            )
    made_of = model, checkpoint.name, layers, checkpoint.pooling, length, Prompts.of(model.draft)
    graph = open_graph(*made_of, plan.cache, plan.options, report)
    searched = [
        text
        for collection in plan.collections
        for text in (*collection.queries.values(), *collection.documents.values())
    ]
    vectors = embed_layers(graph, tuple(dict.fromkeys((*plan.data.texts, *searched))), plan.options, report)
    sentences = corpus_sentences(width)
    fitted = embed_layers(graph, sentences, plan.options, report)
    normalized = model.draft.layers if model.draft.normalize else None
    scorer = Scorer(vectors, fitted, plan.data.tasks, plan.collections, by_cosine, normalized)
    every, threads = scored_combinations(layers), plan.options.threads or default_threads()
    similarity = _score_all(scorer.similarity, every if plan.data.tasks else [], threads, "similarity", report)
    pairs = [combination for combination in every if len(combination) <= 2 and plan.collections]
    search = _score_all(scorer.search, pairs, threads, "search", report)
    return Sweep(
        model=checkpoint.name,
        checkpoint=model.record.checkpoint,
        weights_sha256=model.record.weights_sha256,
        layers=layers,
        pooling=checkpoint.pooling,
        width=width,
        max_seq_length=length,
        tasks=tuple(task.name for task in plan.data.tasks),
        sentences=len(plan.data.texts),
        corpus=BUILTIN_CORPUS,
        corpus_sentences=len(sentences),
        similarity=tuple(similarity),
        best=scorer.rows(best_scores(similarity, layers)),
        collections=tuple(collection.name for collection in plan.collections),
        by_cosine=by_cosine,
        search=tuple(search),
    )


def _score_all(
    score: Callable[[Combination], list[Score]], chosen: Sequence[Combination], threads: int, of: str, report: Reporter
) -> list[Score]:
    if chosen:
        report.stage(f"scoring {len(chosen)} combinations of layers in {of}")
    scores: list[Score] = []
    with threadpool_limits(1), report.bar("combinations", len(chosen)) as advance:  # a thread for each combination
        for rows in map_in_threads(score, chosen, threads, "whiten-combinations"):
            scores += rows
            advance(1)
    return scores


def _by_cosine(model: str, draft: Manifest) -> bool:
    """Return whether vectors of the model that are not normalised are compared by cosine, or else by dot product."""
    try:
        return searched_by_cosine(draft.similarity_fn_name, False)
    except UsageError as error:
        raise UsageError(f"'{model}' {error}; leave the collections out of --data") from None


def corpus_sentences(width: int) -> tuple[str, ...]:
    """Return evenly spaced sentences of the built-in corpus: ten for each dimension, as a fit needs."""
    texts = tuple(dict.fromkeys(sentence for _, sentence in builtin_sentences()))
    places = np.linspace(0, len(texts) - 1, min(ADVISED_RATIO * width, len(texts))).astype(np.intp)
    return tuple(texts[place] for place in places)


def text_of(layers: Combination) -> str:
    return ",".join(map(str, layers))


def scores_csv(sweep: Sweep) -> str:
    """Return all scores as csv, one row each: similarity in columns of tasks, search in columns of collections."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("measure", "whitening", "layers", "average", *sweep.tasks, *sweep.collections))
    for measure, scores, before in (("similarity", sweep.similarity, 0), ("search", sweep.search, len(sweep.tasks))):
        for score in scores:
            empty = (None,) * before
            writer.writerow((measure, score.whitening, text_of(score.layers), score.average, *empty, *score.values))
    return stream.getvalue()


def best_table(sweep: Sweep) -> tuple[list[str], list[list[str | float | None]]]:
    """Return the header and the rows of the best combinations in similarity."""
    header = ["layers", "whitening", "average", "95% from", "to", "to the best", "95% from", "to", *sweep.tasks]
    rows: list[list[str | float | None]] = []
    for row in sweep.best:
        own, first = row.score, sweep.best[0].score
        mean = own.average, row.interval.low, row.interval.high
        difference = (own.average or 0) - (first.average or 0), row.difference.low, row.difference.high
        behind = (None,) * 3 if own is first else difference
        rows.append([text_of(own.layers), own.whitening, *mean, *behind, *own.values])
    return header, rows


def search_table(sweep: Sweep) -> tuple[list[str], list[list[str | float | None]]]:
    """Return the header and the rows of the best combinations in search."""
    best = sorted(sweep.search, key=rank)[:_SHOWN]
    rows = [[text_of(score.layers), score.whitening, score.average, *score.values] for score in best]
    return ["layers", "whitening", "nDCG@10", *sweep.collections], rows


def picture(sweep: Sweep) -> Figure:
    """Draw the scores of every layer by itself, in similarity and in search, for each whitening."""
    parts = [("Spearman's correlation x 100", sweep.similarity), ("nDCG@10 x 100", sweep.search)]
    parts = [part for part in parts if part[1]]
    figure = Figure(figsize=(7.2, 3.8 * len(parts)), dpi=150, layout="constrained")
    for axes, (name, scores) in zip(figure.subplots(len(parts), squeeze=False)[:, 0], parts, strict=True):
        single = [score for score in scores if len(score.layers) == 1 and score.average is not None]
        for kind in dict.fromkeys(score.whitening for score in single):
            points = [(score.layers[0], score.average) for score in single if score.whitening == kind]
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=f"whitening: {kind}")
        axes.set(xlabel="layer (0: embeddings)", ylabel=name, xticks=sweep.layers, title=sweep.model)
        axes.grid(True, color="#e5e5ea")
        if single:
            axes.legend(frameon=False, fontsize=8)
    return figure
