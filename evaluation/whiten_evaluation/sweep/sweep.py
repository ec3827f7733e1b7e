"""Run a sweep from end to end: embed the texts once, then score combinations of layers on the stored vectors."""

import hashlib
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from whiten_evaluation.embedding import check_fit
from whiten_evaluation.sweep.combinations import LIMITS, SearchLimits
from whiten_evaluation.sweep.graph import LayerGraph, check_layers, write_layers
from whiten_evaluation.sweep.results import Depth, Score, Sweep, average
from whiten_evaluation.sweep.search import dimension_curves, search
from whiten_evaluation.sweep.speed import measure_depths, steps
from whiten_evaluation.sweep.store import LayerVectors, embed_layers, texts_digest
from whiten_evaluation.tasks.sts_files import StsData, Task
from whiten_export.sources.base import TokenModel
from whiten_export.sources.checkpoints.checkpoint import resolve
from whiten_export.sources.choice import SourceChoice, resolve_layers
from whiten_export.sources.max_length import choose_max_seq_length
from whiten_export.sources.opening import open_model
from whiten_export.writing.staging import locked
from whiten_runtime.bundle.manifest import Pooling
from whiten_runtime.errors import UsageError
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


def run_sweep(plan: SweepPlan, reporter: Reporter | None = None) -> Sweep:
    """Score combinations of a model's layers on similarity tasks, not whitened and whitened on each task's sentences.

    Args:
        plan: description of the sweep.
        reporter: told about stages and progress.

    Raises:
        UsageError: the plan does not fit the model, or another sweep is using the cache.
        ParityError: vectors of the graph of all layers differ from the model's reference.
        DataError: a vector is not finite.
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
    folder.mkdir(parents=True, exist_ok=True)
    pad = model.tokenizer.pad_token_id
    with locked(folder):
        graph = LayerGraph(folder / "graph", layers, plan.poolings, model.record.hidden_size, pad, length)
        with _timed(seconds, "graph"):
            _make_graph(model, graph, plan.options, report)
        vectors = _embed(plan, graph, folder, seconds, report)
        with _timed(seconds, "score"):
            found = search(vectors, plan.data.tasks, plan.options.threads or default_threads(), report, plan.limits)
        with _timed(seconds, "dimensions"):
            curves = tuple(dimension_curves(vectors, plan.data.tasks, found.scores, report))
        rates: Sequence[float | None] = [None] * len(layers)
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
        searched=found.searched,
        exhaustive=found.exhaustive,
        scores=found.scores,
        curves=curves,
        depths=_depths(layers, rates, found.scores, plan.poolings[0]),
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
    graph.folder.mkdir()
    report.stage(f"making a graph of {model.record.model_type}, layers {', '.join(map(str, graph.layers))}")
    write_layers(model, graph)
    report.stage("checking every layer against the reference")
    with report.bar("poolings", len(graph.poolings)) as advance:
        check_layers(model, graph, options, advance)
    checked.write_text(_digest(graph.path))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _embed(
    plan: SweepPlan, graph: LayerGraph, folder: Path, seconds: dict[str, float], report: Reporter
) -> LayerVectors:
    texts = plan.data.texts
    place = folder / f"texts-{texts_digest(texts)[:12]}"
    report.stage(f"embedding {len(texts):,} sentences, {len(graph.layers)} layers at once, in {place}")
    with _timed(seconds, "embed"), report.bar("texts", len(texts)) as advance:
        return embed_layers(graph, texts, place, plan.options, advance)


def _depths(
    layers: tuple[int, ...], rates: Sequence[float | None], scores: tuple[Score, ...], pooling: Pooling
) -> tuple[Depth, ...]:
    depths = []
    for layer, rate in zip(layers, rates, strict=True):
        known = [
            score
            for score in scores
            if score.pooling == pooling and score.layers[-1] <= layer and score.average is not None
        ]
        best = max(known, key=average, default=None)
        depths.append(Depth(layer=layer, texts_per_second=rate, best=best))
    return tuple(depths)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    seconds[name] = time.monotonic() - started
