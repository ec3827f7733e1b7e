"""Export a model from end to end: model, graph, whitening, files, parity gate. Nothing is published before the gate."""

import dataclasses
import gc
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from threading import Event, Thread

import msgspec
import numpy as np
import onnx_ir as ir

from whiten_export.corpus.fitting import embed_value
from whiten_export.graph.calibration import CALIBRATION_SENTENCES, channel_magnitudes
from whiten_export.graph.files import reopen_graph, save_graph
from whiten_export.graph.float16 import halve_network
from whiten_export.graph.fold_positions import fold_positions
from whiten_export.graph.fuse_cuda import fuse_for_cuda, fusions
from whiten_export.graph.head import set_head
from whiten_export.graph.int8 import halve_weights, quantize_int8
from whiten_export.graph.pooling import pool_graph
from whiten_export.pipeline.choose_whitening import Decision, decide
from whiten_export.pipeline.compose import unwhitened
from whiten_export.pipeline.describe import parity_record
from whiten_export.pipeline.plan import Plan, make_plan
from whiten_export.pipeline.provenance import describe_export
from whiten_export.pipeline.recipe import Recipe
from whiten_export.proof.gate import (
    Definition,
    Expected,
    Tokenized,
    check_bundle,
    check_tokens,
    compare_published,
    compute_expected,
    failure,
)
from whiten_export.proof.probe_texts import LONGEST_PROBE, TOKENIZER_TEXTS, probe_texts, token_batches
from whiten_export.proof.reference import Head
from whiten_export.proof.requests import Request, prompted_requests
from whiten_export.writing.client_files import ClientSettings, write_client_files, write_tokenizer
from whiten_export.writing.result import Export, write_whitening
from whiten_export.writing.staging import staged
from whiten_runtime.bundle.bundle import MODEL_FILE, TOKENIZER_FILE
from whiten_runtime.bundle.graph_names import UNWHITENED_OUTPUT
from whiten_runtime.bundle.manifest import MANIFEST_FILE, Manifest, ParityRecord
from whiten_runtime.bundle.parity import GATES
from whiten_runtime.bundle.probes import write_probes
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.inference.loading import load_graph
from whiten_runtime.inference.prompts import TEXT, with_prompt
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.doctor import check_provider
from whiten_runtime.ort.providers import import_onnxruntime
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningMap
from whiten_whitening.moments import Float64Array

_WORK, MODEL_NAME = "work", "model.onnx"
"""Folder inside the staging directory for graphs that are not part of the bundle, removed before it is published."""

_SHIFT_SENTENCES = 1024
"""Number of sentences of the corpus on which precisions are compared."""

_LONGEST_TEXT = 1 << 16
"""Maximum number of words of the text on which truncation is compared."""

_TOKENIZER_SENTENCES = 512
"""Number of sentences of the corpus on which both tokenizers are compared, besides the probes."""


def export_bundle(
    recipe: Recipe, out: Path | None = None, replace: bool = False, reporter: Reporter | None = None
) -> Export:
    """Export a model to a bundle.

    Args:
        recipe: model and choices.
        out: directory to create; None for bundles/NAME-l1-l6 and the like.
        replace: replace a bundle that already exists.
        reporter: receives stages, warnings and progress; None for no reports.

    Raises:
        UsageError: the recipe is not valid for the model, the corpus or the directory.
        DataError: the corpus cannot be read.
        ParityError: the graph or the tokenizer differs from the model's; nothing is written.
        WhitenError: the model cannot be loaded, exported or written.
    """
    report = reporter or Reporter()
    options = SessionOptions.on_device(recipe.source.device)
    if recipe.graph.target == "cuda":
        fusions()  # a missing package is reported before the work
    plan = make_plan(recipe, out, replace, report)
    choice = plan.recipe.graph
    record = plan.model.record
    with staged(plan.target, replace) as stage:
        write_tokenizer(stage, plan.model.tokenizer, plan.max_seq_length)
        _compare_tokenizers(plan, stage)
        report.stage(
            f"making a graph of {record.model_type}, layers {', '.join(map(str, plan.layers))} of "
            f"{record.num_hidden_layers}, {plan.width} wide"
        )
        with _seconds(report):
            graph = _graph(plan, stage / _WORK / MODEL_NAME)
        tokenizer = _tokenizer(plan, stage)
        decision = decide(plan, stage / _WORK / MODEL_NAME, tokenizer, options, report)
        fitted = decision.fitted
        if fitted is None:  # auto may decide so only now
            composed = unwhitened(plan.composed, recipe.graph.normalize)
            plan = dataclasses.replace(plan, composed=composed, recipe=composed.recipe)
            choice = plan.recipe.graph
        affine = (fitted.mean, fitted.weight) if fitted is not None else None
        both = choice.outputs == "both" and affine is not None
        if choice.outputs == "both" and not both:
            report.warn("there is no whitening, so the graph gives one vector a text, not both")
        if choice.target == "cuda":
            report.stage("fusing operators for CUDA")
            if not fuse_for_cuda(graph, plan.max_seq_length, choice.precision == "fp16"):
                report.warn(f"no attention of this {record.model_type} network could be fused: CUDA runs it as it is")
        set_head(graph, affine, bool(choice.normalize), both)
        dimension = plan.width if fitted is None else fitted.weight.shape[1]
        write_client_files(stage, plan.model.client_config, _client_settings(plan, dimension))
        if choice.precision != "fp32":
            report.stage(f"turning the weights into {choice.precision}")
            _lower_precision(plan, graph, stage, options)  # after the fit: vectors of all precisions are comparable
        save_graph(graph, stage / MODEL_FILE)
        if fitted is not None:
            if choice.precision != "fp32":
                shift = _precision_shift(plan, stage, tokenizer, options)
                fitted = dataclasses.replace(fitted, corpus_mean=fitted.corpus_mean + shift)
            write_whitening(stage, fitted)
        opset = graph.graph.opset_imports[""]
        del graph
        gc.collect()  # graphs and networks refer to themselves, and keep files mapped as long as they live
        shutil.rmtree(stage / _WORK)
        manifest = _prove(plan, decision, opset, stage, options, report)
    return Export(plan.target, manifest)


def _graph(plan: Plan, path: Path) -> ir.Model:
    """Return the graph up to the vector before whitening, with weights in a file and no longer in memory."""
    hidden = plan.model.hidden_states(plan.layers, plan.pooling)
    graph = pool_graph(hidden, plan.composition, plan.model.record.hidden_size)
    del hidden
    fold_positions(graph, plan.max_seq_length)
    graph = reopen_graph(graph, path)
    gc.collect()  # the network's weights
    return graph


def _compare_tokenizers(plan: Plan, stage: Path) -> None:
    tokenizer = _tokenizer(plan, stage)
    sentences = islice(plan.corpus or Corpus((BUILTIN_CORPUS,), None, None), _TOKENIZER_SENTENCES)
    texts = [*probe_texts(min(plan.max_seq_length, _LONGEST_TEXT)), *TOKENIZER_TEXTS, *sentences]
    for prompt in dict.fromkeys(plan.prompts.texts.values()):
        texts += with_prompt(prompt, TOKENIZER_TEXTS) if prompt else []
    ours = [plan.model.tokenizer.plain(tokenizer.cut(row)) for row in tokenizer.tokenize(texts)]
    check_tokens(ours, plan.model.tokenizer.own_ids(texts, plan.max_seq_length), texts)


def _lower_precision(plan: Plan, graph: ir.Model, stage: Path, options: SessionOptions) -> None:
    if plan.recipe.graph.precision == "fp16":
        (halve_network if plan.recipe.graph.target == "cuda" else halve_weights)(graph)
        return
    tokenizer = _tokenizer(plan, stage)
    corpus = plan.corpus or Corpus((BUILTIN_CORPUS,), None, None)
    step = max(1, (plan.sentences or corpus.count()) // CALIBRATION_SENTENCES)
    sentences = with_prompt(plan.prompts.resolve(), list(islice(corpus, 0, step * CALIBRATION_SENTENCES, step)))
    path = stage / _WORK / "calibration.onnx"
    pad = plan.model.tokenizer.pad_token_id
    quantize_int8(graph, channel_magnitudes(graph, sentences, tokenizer, pad, options, path))


def _precision_shift(plan: Plan, stage: Path, tokenizer: Tokenizer, options: SessionOptions) -> Float64Array:
    """Return how far lower precision moves the mean of the vectors before whitening, so that drift can allow for it."""
    assert plan.corpus is not None
    step = max(1, plan.sentences // _SHIFT_SENTENCES)
    sentences = list(islice(plan.corpus, 0, step * _SHIFT_SENTENCES, step))
    pad, means = plan.model.tokenizer.pad_token_id, []
    for path in (stage / _WORK / MODEL_NAME, stage / MODEL_FILE):
        with load_graph(path, tokenizer, pad, options, UNWHITENED_OUTPUT, plan.prompts) as embedder:
            means.append(embed_value(sentences, embedder, UNWHITENED_OUTPUT).mean(axis=0))
    return np.asarray(means[1] - means[0])


def _prove(
    plan: Plan,
    decision: Decision,
    opset: int,
    stage: Path,
    options: SessionOptions,
    report: Reporter,
) -> Manifest:
    """Compute the reference's vectors, write the manifest, and check the bundle at the parity gate."""
    report.stage("computing the reference's vectors")
    expected = _expected(plan, decision.fitted, stage, report)
    write_probes(stage, expected.probes)
    manifest = describe_export(plan, decision, opset, stage)
    published = _compare_published(plan, expected, stage, report)
    manifest = msgspec.structs.replace(manifest, published=published)
    (stage / MANIFEST_FILE).write_bytes(manifest.to_json())
    report.stage(f"checking against {expected.reference}")
    if plan.recipe.graph.target == "cuda":
        options = _on_cuda(options, report)
    agreement = check_bundle(stage, expected, options)
    if not GATES[plan.recipe.graph.precision].passes(agreement):
        in_float32 = _expected(plan, decision.fitted, stage, report, True)
        raise failure(agreement, expected, in_float32, plan.recipe.graph.precision, _named(plan))
    manifest = msgspec.structs.replace(manifest, parity=parity_record(expected.reference, agreement, options))
    (stage / MANIFEST_FILE).write_bytes(manifest.to_json())
    return manifest


def _on_cuda(options: SessionOptions, report: Reporter) -> SessionOptions:
    """Return the session options for checking a bundle for CUDA: on a GPU if there is one, else those given."""
    cuda = SessionOptions.on_device("cuda")
    if not options.on_cpu:
        return options
    if check_provider(import_onnxruntime(), cuda.providers[0]).works:
        return cuda
    report.warn(
        "not verified on CUDA, which does not work here (whiten doctor --provider cuda says why); where it does, "
        "run whiten verify BUNDLE --provider cuda"
    )
    return options


def _expected(
    plan: Plan, fitted: WhiteningMap | None, stage: Path, report: Reporter, single_precision: bool = False
) -> Expected:
    longest = min(plan.max_seq_length, LONGEST_PROBE)
    tokenizer = _tokenizer(plan, stage)
    texts = probe_texts(longest)
    probes, *prompted = (
        _tokenized(plan, tokenizer, request) for request in (Request("", texts), *_prompted(plan, texts))
    )
    batches = token_batches(longest, plan.model.vocab_size, plan.model.tokenizer.pad_token_id)
    definition = Definition(
        reference=plan.model.reference(plan.layers, plan.pooling, single_precision),
        composition=plan.composition,
        head=Head.of((fitted.mean, fitted.weight) if fitted else None, bool(plan.recipe.graph.normalize)),
        hidden_size=plan.model.record.hidden_size,
    )
    total = sum(len(part.ids) for part in (probes, *prompted)) + sum(len(feed["input_ids"]) for feed in batches)
    with report.bar("checks", total) as advance:
        return compute_expected(definition, probes, prompted, batches, advance)


def _prompted(plan: Plan, texts: tuple[str, ...]) -> tuple[Request, ...]:
    return prompted_requests(texts[:-1], plan.prompts.texts)


def _tokenized(plan: Plan, tokenizer: Tokenizer, request: Request) -> Tokenized:
    rows = tokenizer.tokenize(with_prompt(request.prompt, request.texts))
    ids = [plan.model.tokenizer.plain(tokenizer.cut(row)) for row in rows]
    return Tokenized(request, ids, 0 if plan.prompts.pooled else tokenizer.prompt_tokens(request.prompt))


def _compare_published(plan: Plan, expected: Expected, stage: Path, report: Reporter) -> ParityRecord | None:
    """Compare the reference with the program that the model was published for, if layers and modules are its own."""
    composed = plan.composed
    if not composed.keeps_modules or composed.own is None:
        return None
    texts = expected.probes.texts
    ids = _tokenizer(plan, stage).tokenize(texts)
    with_tokens = tuple(text for text, row in zip(texts, ids, strict=True) if row)
    requests = (Request("", with_tokens), *(request for request in expected.requests if TEXT not in request.prompt))
    if len(requests) <= len(expected.requests):
        return None  # templates are not sentence-transformers'
    report.stage("checking the reference against the published model")
    published = plan.model.published(requests, plan.max_seq_length)
    if published is None:
        return None
    agreement = compare_published(expected, published, requests, composed.own.normalize, plan.model.record.model)
    return parity_record(published.name, agreement)


def _tokenizer(plan: Plan, stage: Path) -> Tokenizer:
    return Tokenizer(stage / TOKENIZER_FILE, plan.max_seq_length, plan.model.tokenizer.truncation_side)


def _client_settings(plan: Plan, dimension: int) -> ClientSettings:
    own, prompts = plan.composed.own, plan.prompts
    return ClientSettings(
        dimension=dimension,
        max_seq_length=plan.max_seq_length,
        prompts={name: text for name, text in prompts.texts.items() if TEXT not in text},
        default_prompt_name=None if TEXT in prompts.resolve() else prompts.default,
        similarity_fn_name="cosine" if own is None else own.similarity_fn_name,
    )


def _named(plan: Plan) -> str:
    layers = ", ".join(map(str, plan.layers))
    return f"this {plan.model.record.model_type} network, layers {layers} with {plan.pooling} pooling,"


@contextmanager
def _seconds(report: Reporter) -> Iterator[None]:
    """Report the elapsed seconds of work whose progress is unknown."""
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
