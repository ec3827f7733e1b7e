"""The export from end to end: checkpoint, graph, whitening, files, proof. Nothing is published before the proof."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.numpy import save

from whiten_export.calibrate import CALIBRATION_SENTENCES, channel_magnitudes
from whiten_export.corpus import Corpus
from whiten_export.fit import fit_moments
from whiten_export.gate import check_bundle, check_tokens, reference_probes
from whiten_export.graph import export_graph, save_graph, save_unwhitened_graph, set_whitening
from whiten_export.loading import load_network
from whiten_export.plan import Plan, make_plan
from whiten_export.probe_texts import probe_texts, token_batches
from whiten_export.provenance import describe_export
from whiten_export.quantize import halve_weights, quantize_int8
from whiten_export.recipe import BUILTIN_CORPUS, Recipe
from whiten_export.reference import SentenceEncoder, Whitening
from whiten_export.reporter import Reporter
from whiten_export.staging import staged
from whiten_export.tokenizer_files import write_client_files, write_tokenizer
from whiten_export.whitening import WhiteningMap, fit_pca
from whiten_runtime.bundle import MODEL_FILE, TOKENIZER_FILE, WHITENING_FILE
from whiten_runtime.embedder import Embedder
from whiten_runtime.engine import UNWHITENED_OUTPUT, Engine
from whiten_runtime.errors import ProviderError
from whiten_runtime.manifest import MANIFEST_FILE, Manifest, ParityRecord
from whiten_runtime.probes import write_probes
from whiten_runtime.session import SessionOptions
from whiten_runtime.tokenizer import Tokenizer


@dataclass(frozen=True)
class Export:
    """What was written.

    Attributes:
        path: the bundle.
        manifest: its manifest.
    """

    path: Path
    manifest: Manifest

    @property
    def bytes(self) -> int:
        """Size of all files that the manifest lists."""
        return sum(record.bytes for record in self.manifest.files.values())


def export_bundle(
    recipe: Recipe, out: Path | None = None, replace: bool = False, reporter: Reporter | None = None
) -> Export:
    """Export a model to a bundle.

    Args:
        recipe: what to export.
        out: the directory to make; None for bundles/NAME-l1-l6 and the like.
        replace: replace a bundle that is already there.
        reporter: told about stages, warnings and progress; None for silence.

    Raises:
        UsageError: the recipe does not fit the model, the corpus or the directory.
        DataError: the corpus cannot be read.
        ParityError: the graph is not what PyTorch computes; nothing is written.
        WhitenError: the model cannot be loaded, exported or written.
    """
    report = reporter or Reporter()
    options = _session_options(recipe.device)
    plan = make_plan(recipe, out, replace, report)
    with staged(plan.target, replace) as stage:
        report.stage(f"loading {plan.config.model_type}, {plan.config.num_hidden_layers} layers of {plan.width}")
        encoder = _load_encoder(plan)
        report.stage(f"tracing layers {', '.join(map(str, plan.layers))} into an ONNX graph")
        with _seconds(report):
            graph = export_graph(encoder)
        write_tokenizer(stage, plan.checkpoint, plan.tokenizer, plan.max_seq_length)
        write_client_files(stage, plan.config, plan.dimension, plan.max_seq_length)
        fitted = None
        if encoder.whitening is not None:
            report.stage(f"fitting the whitening on {plan.sentences:,} sentences")
            fitted = _fit(plan, graph, stage, options, report)
            set_whitening(graph, fitted.mean, fitted.weight)
            encoder.whitening.set(fitted.mean, fitted.weight)
            _write_whitening(stage, fitted)
        if recipe.precision != "fp32":
            report.stage(f"turning the weights into {recipe.precision}")
            _lower_precision(plan, graph, stage, options)  # after the fit: vectors of all precisions are comparable
        save_graph(graph, stage / MODEL_FILE)
        del graph  # it refers to the module's weights, which become float64 below
        report.stage("checking against PyTorch in float64")
        manifest = _prove(plan, encoder, fitted, stage, options, report)
    return Export(plan.target, manifest)


def _load_encoder(plan: Plan) -> SentenceEncoder:
    recipe = plan.recipe
    network = load_network(plan.checkpoint, plan.config, recipe.trust_remote_code)
    whitening = Whitening(plan.width, plan.dimension) if recipe.whitening else None
    return SentenceEncoder(network, plan.layers, recipe.pooling, whitening, recipe.normalize).eval()


def _lower_precision(plan: Plan, graph: Any, stage: Path, options: SessionOptions) -> None:
    if plan.recipe.precision == "fp16":
        halve_weights(graph)
        return
    tokenizer = Tokenizer(stage / TOKENIZER_FILE, plan.max_seq_length)
    corpus = plan.corpus or Corpus((BUILTIN_CORPUS,), None, None)
    step = max(1, (plan.sentences or corpus.count()) // CALIBRATION_SENTENCES)
    sentences = islice(corpus, 0, step * CALIBRATION_SENTENCES, step)
    model = stage / "calibration" / MODEL_FILE
    quantize_int8(graph, channel_magnitudes(graph, sentences, tokenizer, plan.pad_token_id, options, model))
    shutil.rmtree(stage / "calibration", ignore_errors=True)  # no file where no activation is quantised


def _fit(plan: Plan, graph: Any, stage: Path, options: SessionOptions, report: Reporter) -> WhiteningMap:
    assert plan.corpus is not None
    model = stage / "fit" / MODEL_FILE
    save_unwhitened_graph(graph, model)
    engine = Engine(model, plan.pad_token_id, options, UNWHITENED_OUTPUT)
    tokenizer = Tokenizer(stage / TOKENIZER_FILE, plan.max_seq_length)
    with report.bar("sentences", plan.sentences) as advance:
        moments = fit_moments(plan.corpus, Embedder(tokenizer, engine), advance)
    engine.close()
    shutil.rmtree(stage / "fit")
    fitted = fit_pca(moments, plan.dimension)
    if plan.recipe.dim is not None and plan.recipe.dim > fitted.rank:
        report.warn(f"only {fitted.rank} of {plan.recipe.dim} dimensions carry something; the others come out near 0")
    return fitted


def _write_whitening(stage: Path, fitted: WhiteningMap) -> None:
    n = np.asarray([fitted.n_samples], np.int64)
    content = save({"mean": fitted.mean, "W": fitted.weight, "eigenvalues": fitted.eigenvalues, "n": n})
    (stage / WHITENING_FILE).write_bytes(content)


def _prove(
    plan: Plan,
    encoder: SentenceEncoder,
    fitted: WhiteningMap | None,
    stage: Path,
    options: SessionOptions,
    report: Reporter,
) -> Manifest:
    """Compute the reference's vectors, write the manifest, and let the bundle through the gate."""
    texts = probe_texts(plan.max_seq_length)
    tokenizer = Tokenizer(stage / TOKENIZER_FILE, plan.max_seq_length)
    ours = [tokenizer.cut(row) for row in tokenizer.tokenize(texts)]
    theirs = plan.tokenizer(list(texts), truncation=True, max_length=plan.max_seq_length)["input_ids"]
    check_tokens(ours, theirs, texts)
    batches = token_batches(plan.max_seq_length, plan.config.vocab_size, plan.pad_token_id)
    encoder.to(plan.recipe.device).double()
    with report.bar("checks", len(texts) + len(batches)) as advance:
        probes = reference_probes(encoder, texts, ours, advance)
        write_probes(stage, probes)
        manifest = describe_export(plan, fitted, stage)
        (stage / MANIFEST_FILE).write_bytes(manifest.to_json())
        agreement = check_bundle(stage, encoder, probes, ours, batches, options, advance)
    parity = ParityRecord(
        reference=f"torch {torch.__version__}, float64",
        vectors=agreement.vectors,
        min_cosine=agreement.min_cosine,
        mean_cosine=agreement.mean_cosine,
        max_difference=agreement.max_difference,
    )
    manifest = msgspec.structs.replace(manifest, parity=parity)
    (stage / MANIFEST_FILE).write_bytes(manifest.to_json())
    return manifest


@contextmanager
def _seconds(report: Reporter) -> Iterator[None]:
    """Progress of work that cannot tell how far it is: the seconds that it takes."""
    done = Event()
    with report.bar("seconds", None) as advance:

        def tick() -> None:
            while not done.wait(1):
                advance(1)

        clock = Thread(target=tick, daemon=True)
        clock.start()
        try:
            yield
        finally:
            done.set()
            clock.join()


def _session_options(device: str) -> SessionOptions:
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return SessionOptions()
    if not torch.cuda.is_available() or int(index or 0) >= torch.cuda.device_count():
        raise ProviderError(f"device is '{device}', but PyTorch finds no such CUDA device here; use --device cpu")
    return SessionOptions((("CUDAExecutionProvider", {"device_id": int(index or 0), "use_tf32": 0}),))
