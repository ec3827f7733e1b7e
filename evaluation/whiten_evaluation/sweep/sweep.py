"""Run a sweep from end to end: embed the texts once, then score combinations of layers on the stored vectors."""

import hashlib
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median

from whiten_evaluation.embedding import check_fit
from whiten_evaluation.sweep.combinations import LIMITS, SearchLimits
from whiten_evaluation.sweep.corpus import FitCorpus, corpus_scores, read_corpus
from whiten_evaluation.sweep.curves import dimension_curves, fit_curves
from whiten_evaluation.sweep.graph import LayerGraph, check_layers, write_layers
from whiten_evaluation.sweep.results import Depth, Score, Sweep, average
from whiten_evaluation.sweep.search import search
from whiten_evaluation.sweep.speed import measure_depths, steps
from whiten_evaluation.sweep.store import LayerVectors, embed_layers, texts_digest
from whiten_evaluation.tasks.sts_files import StsData, Task
from whiten_export.sources.base import TokenModel
from whiten_export.sources.checkpoints.checkpoint import resolve
from whiten_export.sources.choice import SourceChoice, resolve_layers
from whiten_export.sources.opening import choose_max_seq_length, open_model
from whiten_export.writing.staging import locked
from whiten_runtime.bundle.manifest import Pooling
from whiten_runtime.errors import DataError, UsageError
from whiten_runtime.files.corpus import BUILTIN_CORPUS
from whiten_runtime.files.replacing import replace_file, written_as
from whiten_runtime.ort.processor import default_threads
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningSpec


@dataclass(frozen=True)
class SweepPlan:
    """Describes a sweep to be run.

    Attributes:
        model: name, directory or hub id, as for an export.
        data: the tasks.
        cache: folder in which graphs and vectors are kept.
        layers: layers to combine, as for an export; None for all.
        poolings: poolings over the tokens.
        max_length: largest number of tokens of a text; None for the checkpoint's own limit.
        speed: whether to measure the speed of each depth.
        options: options of the sessions.
        revision: branch, tag or commit on the hub.
        trust_remote_code: whether to run code that comes with a checkpoint.
        limits: says how many combinations are scored.
        corpus: files of sentences for the whitening "corpus", or the built-in corpus; none for no such whitening.
    """

    model: str
    data: StsData
    cache: Path
    layers: tuple[int, ...] | None = None
    poolings: tuple[Pooling, ...] = ("mean", "cls")
    max_length: int | None = None
    speed: bool = True
    options: SessionOptions = field(default_factory=SessionOptions)
    revision: str | None = None
    trust_remote_code: bool = False
    limits: SearchLimits = LIMITS
    corpus: tuple[str, ...] = (BUILTIN_CORPUS,)


def run_sweep(plan: SweepPlan, reporter: Reporter | None = None) -> Sweep:
    """Score combinations of a model's layers on similarity tasks, not whitened and whitened on each task's sentences.

    Single layers, pairs and the best combinations are also scored whitened on a corpus.

    Args:
        plan: description of the sweep.
        reporter: told about stages and progress.

    Raises:
        UsageError: the plan does not fit the model, or another sweep is using the cache.
        ParityError: vectors of the graph of all layers differ from the model's reference.
        DataError: a vector is not finite, or a file of the corpus cannot be read.
        WhitenError: the model cannot be loaded or exported, or the disk has too little free space.
    """
    report = reporter or Reporter()
    seconds: dict[str, float] = {}
    report.stage(f"finding {plan.model}")
    checkpoint = resolve(plan.model, plan.revision, plan.trust_remote_code)
    if checkpoint.kind == "words":
        raise UsageError(f"'{plan.model}' is word vectors, which have one layer; nothing to sweep over")
    choice = SourceChoice(plan.model, revision=plan.revision, trust_remote_code=plan.trust_remote_code)
    model = open_model(checkpoint, choice)
    layers = resolve_layers(plan.layers or model.layers, model.record.num_hidden_layers, model.layers)
    if len(layers) < 2:
        raise UsageError(f"'{plan.model}' was left with layer {layers[0]} alone; a sweep needs two or more")
    length = choose_max_seq_length(checkpoint, model.positions, model.tokenizer, plan.max_length)
    for task in plan.data.tasks:
        if warning := _sample_warning(task, model.record.hidden_size):
            report.warn(warning)
    folder = plan.cache / f"{checkpoint.name.replace('/', '--')}-{_key(model, layers, plan.poolings, length)}"
    with written_as(plan.cache, "another --cache"):
        folder.mkdir(parents=True, exist_ok=True)
    pad = model.tokenizer.pad_token_id
    corpus = _read_corpus(plan.corpus, model.record.hidden_size, report)
    threads = plan.options.threads or default_threads()
    with locked(folder):
        graph = LayerGraph(folder / "graph", layers, plan.poolings, model.record.hidden_size, pad, length)
        with _timed(seconds, "graph"):
            _make_graph(model, graph, plan.options, report)
        with _timed(seconds, "embed"):
            vectors = _embed(plan.data.texts, graph, folder, plan.options, report)
            fitted = None if corpus is None else _embed(corpus.texts, graph, folder, plan.options, report)
        with _timed(seconds, "score"):
            found = search(vectors, plan.data.tasks, threads, report, plan.limits)
        scores = found.scores
        if fitted is not None:
            report.stage("scoring layers whitened on the corpus")
            with _timed(seconds, "corpus"):
                scores += tuple(corpus_scores(vectors, fitted, plan.data.tasks, found.scores, threads, report))
        with _timed(seconds, "curves"):
            curves = tuple(dimension_curves(vectors, plan.data.tasks, scores, report))
            fits = tuple(fit_curves(vectors, fitted, plan.data.tasks, scores, report))
        rates: Sequence[tuple[float, ...]] = [()] * len(layers)
        if plan.speed:
            report.stage("measuring the speed of each depth")
            with _timed(seconds, "speed"), report.bar("measurements", steps(graph)) as advance:
                rates = measure_depths(graph, plan.data.texts, plan.options, advance)
    return Sweep(
        model=checkpoint.name,
        checkpoint=model.record.checkpoint,
        weights_sha256=model.record.weights_sha256,
        layers=layers,
        poolings=plan.poolings,
        width=model.record.hidden_size,
        max_seq_length=length,
        tasks=tuple(task.name for task in plan.data.tasks),
        absent=dict(plan.data.absent),
        sentences=len(plan.data.texts),
        task_sentences=tuple(len(task.texts) for task in plan.data.tasks),
        corpus=None if corpus is None else corpus.name,
        corpus_sentences=0 if corpus is None else len(corpus.texts),
        searched=found.searched,
        exhaustive=found.exhaustive,
        scores=scores,
        curves=curves,
        fits=fits,
        depths=_depths(layers, rates, scores, plan.poolings[0]),
        seconds=seconds,
    )


def _key(model: TokenModel, layers: tuple[int, ...], poolings: tuple[Pooling, ...], length: int) -> str:
    """Return a hash of what vectors depend on besides texts: version, model, layers, poolings and length."""
    config = sorted(model.client_config.items())
    made_of = (model.record.weights_sha256, model.record.revision, config, model.tokenizer.json)
    parts = (version("whiten"), made_of, layers, poolings, length)
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _sample_warning(task: Task, width: int) -> str | None:
    n = len(task.texts)
    try:
        check_fit(n, width, WhiteningSpec(), task.name)
    except UsageError:
        return (
            f"{task.name} is not scored whitened, nor is an average with it: {n:,} sentences for {width} dimensions "
            "are too few; choose others with --tasks"
        )
    return None


def _make_graph(model: TokenModel, graph: LayerGraph, options: SessionOptions, report: Reporter) -> None:
    checked = graph.folder / "checked"
    if checked.is_file() and graph.path.is_file() and checked.read_text() == _digest(graph.path):
        return
    shutil.rmtree(graph.folder, ignore_errors=True)
    report.stage(f"making a graph of {model.record.model_type}, layers {', '.join(map(str, graph.layers))}")
    with written_as(graph.folder, "another --cache"):
        graph.folder.mkdir()
        write_layers(model, graph)
    report.stage("checking every layer against the reference")
    with report.bar("poolings", len(graph.poolings)) as advance:
        check_layers(model, graph, options, advance)
    replace_file(checked, _digest(graph.path).encode(), "another --cache")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_corpus(sources: tuple[str, ...], width: int, report: Reporter) -> FitCorpus | None:
    """Read the corpus; where the built-in one is missing, warn and go on without it."""
    if not sources:
        return None
    try:
        return read_corpus(sources, width)
    except DataError as error:
        if sources != (BUILTIN_CORPUS,):
            raise
        report.warn(f"nothing is whitened on a corpus: {error}")
        return None


def _embed(
    texts: tuple[str, ...], graph: LayerGraph, folder: Path, options: SessionOptions, report: Reporter
) -> LayerVectors:
    place = folder / f"texts-{texts_digest(texts)[:12]}"
    report.stage(f"embedding {len(texts):,} sentences, {len(graph.layers)} layers at once, in {place}")
    with report.bar("texts", len(texts)) as advance:
        return embed_layers(graph, texts, place, options, advance)


def _depths(
    layers: tuple[int, ...],
    rates: Sequence[tuple[float, ...]],
    scores: tuple[Score, ...],
    pooling: Pooling,
) -> tuple[Depth, ...]:
    depths = []
    for layer, measured in zip(layers, rates, strict=True):
        known = [
            score
            for score in scores
            if score.pooling == pooling and score.layers[-1] <= layer and score.average is not None
        ]
        depths.append(
            Depth(
                layer=layer,
                texts_per_second=median(measured) if measured else None,
                spread=(min(measured), max(measured)) if measured else None,
                best=max(known, key=average, default=None),
            )
        )
    return tuple(depths)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    seconds[name] = time.monotonic() - started
