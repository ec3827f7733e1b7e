"""The export from end to end: checkpoint, graph, whitening, files, proof. Nothing is published before the proof."""

import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from whiten_export.checkpoint import Checkpoint, resolve
from whiten_export.corpus import Corpus
from whiten_export.families import FAMILIES
from whiten_export.fit import fit_moments
from whiten_export.gate import check_bundle, check_tokens, reference_probes
from whiten_export.graph import OPSET, export_graph, save_graph, save_unwhitened_graph, set_whitening
from whiten_export.loading import load_config, load_network, load_tokenizer
from whiten_export.probe_texts import probe_texts, token_batches
from whiten_export.recipe import Recipe, bundle_name, resolve_layers
from whiten_export.reference import SentenceEncoder, Whitening
from whiten_export.reporter import Reporter
from whiten_export.staging import check_target, staged
from whiten_export.tokenizer_files import choose_max_seq_length, write_client_files, write_tokenizer
from whiten_export.whitening import EIGENVALUE_FLOOR, WhiteningMap, check_sample_count, fit_pca
from whiten_runtime.bundle import MODEL_FILE, TOKENIZER_FILE, WHITENING_FILE, file_record, list_files
from whiten_runtime.engine import UNWHITENED_OUTPUT, Engine
from whiten_runtime.errors import ProviderError, UsageError
from whiten_runtime.manifest import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    Manifest,
    ParityRecord,
    Source,
    WhiteningRecord,
)
from whiten_runtime.probes import write_probes
from whiten_runtime.session import SessionOptions
from whiten_runtime.tokenizer import Tokenizer

_RECORDED = ("whiten", "torch", "transformers", "tokenizers", "onnx", "onnx-ir", "onnxscript", "numpy")


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


@dataclass(frozen=True)
class _Plan:
    """Everything that is decided before weights are loaded."""

    checkpoint: Checkpoint
    config: Any
    tokenizer: Any
    layers: tuple[int, ...]
    max_seq_length: int
    pad_token_id: int
    width: int
    dimension: int
    target: Path


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
    corpus = Corpus(recipe.corpus, recipe.column, recipe.max_sentences)
    plan = _plan(recipe, out, replace, corpus, report)
    with staged(plan.target, replace) as stage:
        encoder = _load_encoder(recipe, plan, report)
        report.stage(f"tracing layers {', '.join(map(str, plan.layers))} into an ONNX graph")
        graph = export_graph(encoder)
        write_tokenizer(stage, plan.checkpoint, plan.tokenizer, plan.max_seq_length)
        write_client_files(stage, plan.config, plan.dimension, plan.max_seq_length)
        fitted = None
        if encoder.whitening is not None:
            fitted = _fit(plan, corpus, graph, stage, options, report)
            set_whitening(graph, fitted.mean, fitted.weight)
            encoder.whitening.set(fitted.mean, fitted.weight)
            _write_whitening(stage, fitted)
        save_graph(graph, stage / MODEL_FILE)
        del graph  # it refers to the module's weights, which become float64 below
        manifest = _prove(recipe, plan, encoder, fitted, corpus, stage, options, report)
        report.stage("writing the bundle")
    return Export(plan.target, manifest)


def _plan(recipe: Recipe, out: Path | None, replace: bool, corpus: Corpus, report: Reporter) -> _Plan:
    if out is not None:
        check_target(out, replace)
    report.stage(f"finding {recipe.model}")
    checkpoint = resolve(recipe.model, recipe.revision, recipe.trust_remote_code)
    config = load_config(checkpoint, recipe.trust_remote_code)
    count, width = config.num_hidden_layers, config.hidden_size
    default = checkpoint.entry.recommended_layers if checkpoint.entry else tuple(sorted({1, count}))
    layers = resolve_layers(default if recipe.layers is None else recipe.layers, count)
    if recipe.dim is not None and recipe.dim > width:
        raise UsageError(f"dim is {recipe.dim}, but the model's vectors have {width} dimensions; wanted 1 to {width}")
    target = out or Path("bundles") / bundle_name(checkpoint.name, recipe, layers)
    check_target(target, replace)
    if recipe.whiten:
        corpus.check()
        if checkpoint.sentence_similarity and layers[-1] == count:
            report.warn(
                f"{checkpoint.name} was fine-tuned for sentence similarity; whitening its top layer is measured to "
                "make similarities worse: compare with --whitening none"
            )
    if config.model_type not in FAMILIES:
        report.warn(f"architecture '{config.model_type}' has not been tried; the parity gate will decide")
    tokenizer = load_tokenizer(checkpoint, recipe.trust_remote_code)
    return _Plan(
        checkpoint=checkpoint,
        config=config,
        tokenizer=tokenizer,
        layers=layers,
        max_seq_length=choose_max_seq_length(checkpoint, config, tokenizer, recipe.max_length),
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0,
        width=width,
        dimension=recipe.dim or width,
        target=target,
    )


def _load_encoder(recipe: Recipe, plan: _Plan, report: Reporter) -> SentenceEncoder:
    report.stage(f"loading {plan.config.model_type}, {plan.config.num_hidden_layers} layers of {plan.width}")
    network = load_network(plan.checkpoint, plan.config, recipe.trust_remote_code)
    whitening = Whitening(plan.width, plan.dimension) if recipe.whiten else None
    return SentenceEncoder(network, plan.layers, recipe.pooling, whitening, recipe.normalize).eval()


def _fit(
    plan: _Plan, corpus: Corpus, graph: Any, stage: Path, options: SessionOptions, report: Reporter
) -> WhiteningMap:
    report.stage("fitting the whitening")
    folder = stage / "fit"
    save_unwhitened_graph(graph, folder / "onnx" / "model.onnx")
    engine = Engine(folder / "onnx" / "model.onnx", plan.pad_token_id, options, UNWHITENED_OUTPUT)
    tokenizer = Tokenizer(stage / TOKENIZER_FILE, plan.max_seq_length)
    with report.bar("sentences", None) as advance:
        moments = fit_moments(corpus, tokenizer, engine, plan.width, advance)
    engine.close()
    shutil.rmtree(folder)
    if warning := check_sample_count(moments.n, plan.width, plan.dimension):
        report.warn(warning)
    return fit_pca(moments, plan.dimension)


def _write_whitening(stage: Path, fitted: WhiteningMap) -> None:
    n = np.asarray([fitted.n_samples], np.int64)
    content = save({"mean": fitted.mean, "W": fitted.weight, "eigenvalues": fitted.eigenvalues, "n": n})
    (stage / WHITENING_FILE).write_bytes(content)


def _prove(
    recipe: Recipe,
    plan: _Plan,
    encoder: SentenceEncoder,
    fitted: WhiteningMap | None,
    corpus: Corpus,
    stage: Path,
    options: SessionOptions,
    report: Reporter,
) -> Manifest:
    """Compute the reference's vectors, write the manifest, and let the bundle through the gate."""
    report.stage("checking against PyTorch in float64")
    texts = probe_texts(plan.max_seq_length)
    tokenizer = Tokenizer(stage / TOKENIZER_FILE, plan.max_seq_length)
    ours = [tokenizer.cut(row) for row in tokenizer.tokenize(texts)]
    theirs = plan.tokenizer(list(texts), truncation=True, max_length=plan.max_seq_length)["input_ids"]
    check_tokens(ours, theirs, texts)
    encoder.to(recipe.device).double()
    batches = len(token_batches(plan.max_seq_length, plan.config.vocab_size, plan.pad_token_id))
    with report.bar("checks", len(texts) + batches) as advance:
        probes = reference_probes(encoder, texts, ours, advance)
        write_probes(stage, probes)
        manifest = _manifest(recipe, plan, fitted, corpus, stage, None)
        (stage / MANIFEST_FILE).write_bytes(manifest.to_json())
        agreement = check_bundle(stage, encoder, probes, options, advance)
    parity = ParityRecord(
        reference=f"torch {version('torch')}, float64",
        vectors=agreement.vectors,
        min_cosine=agreement.min_cosine,
        mean_cosine=agreement.mean_cosine,
        max_difference=agreement.max_difference,
    )
    manifest = _manifest(recipe, plan, fitted, corpus, stage, parity)
    (stage / MANIFEST_FILE).write_bytes(manifest.to_json())
    return manifest


def _manifest(
    recipe: Recipe,
    plan: _Plan,
    fitted: WhiteningMap | None,
    corpus: Corpus,
    stage: Path,
    parity: ParityRecord | None,
) -> Manifest:
    checkpoint = plan.checkpoint
    whitening = None
    if fitted is not None:
        whitening = WhiteningRecord(
            method="pca",
            beta=1.0,
            shrinkage=0.0,
            eigenvalue_floor=EIGENVALUE_FLOOR,
            rank=fitted.rank,
            n_samples=fitted.n_samples,
            corpus=corpus.records,
        )
    return Manifest(
        format_version=FORMAT_VERSION,
        name=plan.target.name,
        source=Source(
            model=checkpoint.name,
            checkpoint=checkpoint.hub_id,
            revision=checkpoint.revision,
            weights_sha256=checkpoint.weights_sha256,
            model_type=plan.config.model_type,
            num_hidden_layers=plan.config.num_hidden_layers,
            hidden_size=plan.width,
            sentence_similarity=checkpoint.sentence_similarity,
        ),
        layers=plan.layers,
        pooling=recipe.pooling,
        whitening=whitening,
        normalize=recipe.normalize,
        dimension=plan.dimension,
        max_seq_length=plan.max_seq_length,
        pad_token_id=plan.pad_token_id,
        precision="fp32",
        opset=OPSET,
        versions=_versions(),
        parity=parity,
        files={name: file_record(stage / name) for name in list_files(stage)},
    )


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in (*_RECORDED, "onnxruntime", "onnxruntime-gpu"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _session_options(device: str) -> SessionOptions:
    import torch

    kind, _, index = device.partition(":")
    if kind == "cpu":
        return SessionOptions()
    if not torch.cuda.is_available():
        raise ProviderError(f"device is '{device}', but PyTorch finds no CUDA here; use --device cpu")
    return SessionOptions((("CUDAExecutionProvider", {"device_id": int(index or 0), "use_tf32": 0}),))
