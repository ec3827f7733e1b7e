"""Run a sweep from end to end: embed the texts once, then score combinations of layers on the stored vectors."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from whiten_evaluation.sts import StsData
from whiten_evaluation.sweep.layers import embed_layers, open_graph
from whiten_evaluation.sweep.result import Best, Score, Sweep
from whiten_evaluation.sweep.search import Search, score_search, texts_of
from whiten_export.proof.reference import Composition
from whiten_export.sources.model import resolve_layers
from whiten_export.sources.opening import choose_max_seq_length, open_model
from whiten_export.sources.resolve import resolve
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import BUILTIN_CORPUS, builtin_sentences
from whiten_runtime.files.judged import Collection
from whiten_runtime.inference.options import Prompts, searched_by_cosine
from whiten_runtime.ort.processor import default_threads
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import ADVISED_RATIO, WhiteningSpec, check_sample_count


@dataclass(frozen=True)
class SweepPlan:
    model: str  # name, directory or hub id, as for an export
    data: StsData
    collections: tuple[Collection, ...]
    cache: Path  # folder in which graphs and vectors are kept
    layers: tuple[int, ...] | None = None  # None for all
    options: SessionOptions = field(default_factory=SessionOptions)
    trust_remote_code: bool = False


def run_sweep(plan: SweepPlan, report: Reporter) -> Sweep:
    """Score combinations of a model's layers on similarity tasks, and single layers and pairs in search."""
    seconds: dict[str, float] = {}
    report.stage(f"finding {plan.model}")
    checkpoint = resolve(plan.model, plan.trust_remote_code)
    if checkpoint.kind == "words":
        raise UsageError(f"'{plan.model}' is word vectors, which have one layer; nothing to sweep over")
    model = open_model(checkpoint, plan.trust_remote_code)
    depth = model.record.num_hidden_layers
    layers = resolve_layers(plan.layers or model.layers, depth, model.layers)
    if len(layers) < 2:
        raise UsageError(f"'{plan.model}' was left with layer {layers[0]} alone; a sweep needs two or more")
    width = Composition(layers, checkpoint.pooling).pooled_width(model.record.hidden_size)
    length = choose_max_seq_length(model, None)
    by_cosine = not plan.collections or _by_cosine(plan.model, model.draft)
    unit = model.draft.layers if model.draft.normalize else None
    for task in plan.data.tasks:
        try:
            check_sample_count(len(task.texts), width, WhiteningSpec())
        except UsageError:
            report.warn(
                f"{task.name} is not scored whitened, nor is an average with it: {len(task.texts):,} sentences for "
                f"{width} dimensions are too few; choose others with --tasks"
            )
    sentences = corpus_sentences(width)
    with _timed(seconds, "graph"):
        made_of = model, checkpoint.name, layers, checkpoint.pooling, length, Prompts.of(model.draft)
        graph = open_graph(*made_of, plan.cache, plan.options, report)
    with _timed(seconds, "embed"):
        texts = tuple(dict.fromkeys((*plan.data.texts, *texts_of(plan.collections))))
        vectors = embed_layers(graph, texts, plan.options, report)
        fitted = embed_layers(graph, sentences, plan.options, report)
    threads = plan.options.threads or default_threads()
    search = Search(vectors, fitted, plan.data.tasks, threads, report)
    scores: tuple[Score, ...] = ()
    best: tuple[Best, ...] = ()
    if plan.data.tasks:
        with _timed(seconds, "score"):
            scores = search.run()
        with _timed(seconds, "intervals"):
            best = search.best()
    with _timed(seconds, "search"):
        more = {row.score.layers for row in best[:1]}
        searches = (
            score_search(vectors, fitted, plan.collections, more, by_cosine, unit, report) if plan.collections else ()
        )
    return Sweep(
        model=checkpoint.name,
        checkpoint=model.record.checkpoint,
        weights_sha256=model.record.weights_sha256,
        layers=layers,
        depth=depth,
        pooling=checkpoint.pooling,
        width=width,
        max_seq_length=length,
        tasks=tuple(task.name for task in plan.data.tasks),
        absent=dict(plan.data.absent),
        sentences=len(plan.data.texts),
        corpus=BUILTIN_CORPUS,
        corpus_sentences=len(sentences),
        exhaustive=search.is_exhaustive,
        scores=scores,
        best=best,
        collections=tuple(collection.name for collection in plan.collections),
        by_cosine=by_cosine,
        searches=searches,
        seconds=seconds,
    )


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


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    seconds[name] = time.monotonic() - started
