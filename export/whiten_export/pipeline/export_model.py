"""Export a model from end to end: model, graph, whitening, files, parity gate. Nothing is published before the gate."""

import dataclasses
import gc
import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import onnx_ir as ir

from whiten_export.corpus.statistics import Origin, embed_value
from whiten_export.graph.builder import reopen_graph, save_graph
from whiten_export.graph.float16 import halve_network, halve_weights
from whiten_export.graph.fold_positions import fold_positions
from whiten_export.graph.fuse_cuda import fuse_for_cuda, fusions
from whiten_export.graph.head import OPSET, pool_graph, set_head
from whiten_export.graph.int8.convert import Vocabulary, calibration_texts, convert_to_int8, far_texts
from whiten_export.graph.products import sum_residuals
from whiten_export.pipeline.align import check_reference
from whiten_export.pipeline.choose_whitening import Decision, fit_whitening, weigh_layers
from whiten_export.pipeline.own_vectors import check_own_vectors
from whiten_export.pipeline.plan import Plan, choose, open_source
from whiten_export.pipeline.prompts import check_prompts
from whiten_export.pipeline.prove import CHECKING, compare_tokenizers, describe_export, prove
from whiten_export.pipeline.recipe import Recipe
from whiten_export.proof.probe_texts import LONGEST_PROBE
from whiten_export.writing.client_files import Export, write_client_files, write_tokenizer, write_whitening
from whiten_export.writing.staging import check_place, staged
from whiten_runtime.bundle.bundle import MODEL_FILE, TOKENIZER_FILE
from whiten_runtime.bundle.graph import UNWHITENED_OUTPUT
from whiten_runtime.bundle.records import QuantizationRecord
from whiten_runtime.errors import instance_of, path_of
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.inference.embedder import with_prompt
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.moments import Float64Array

CALIBRATION_SENTENCES = 192
"""Number of sentences on which the ranges of int8 are measured."""

_WORK, MODEL_NAME = "work", "model.onnx"
"""Folder inside the staging directory for graphs that are not part of the bundle, removed before it is published."""

_SHIFT_SENTENCES = 1024
"""Number of sentences of the corpus on which precisions are compared."""


def export_bundle(
    recipe: Recipe, out: str | Path | None = None, replace: bool = False, reporter: Reporter | None = None
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
    instance_of("recipe", recipe, Recipe, "Recipe.of('minilm', layers=(0, 1))")
    out = None if out is None else path_of("out", out)
    report = reporter or Reporter()
    options = SessionOptions.on_device(recipe.source.device)
    if recipe.graph.target == "cuda":
        fusions()  # a missing package is reported before the work
    if out is not None:
        check_place(out, replace)
    model = open_source(recipe, report)
    plan = choose(recipe, model, out, replace, report)
    with staged(plan.target, replace) as stage:
        tokenizer = write_own_tokenizer(plan, stage)
        check_prompts(plan, tokenizer, report)
        check_own_vectors(plan, recipe.source, tokenizer, report)
        graph = build(plan, stage)
        unwhitened = stage / _WORK / MODEL_NAME
        plan, graph = weigh_layers(plan, graph, (_unweighed(stage), unwhitened), tokenizer, options, report)
        plan, decision = fit_whitening(plan, unwhitened, tokenizer, options, report)
        fold(plan, graph, decision, report)
        graph, quantization = lower(plan, graph, stage, tokenizer, options, report)
        write(plan, graph, decision, stage, tokenizer, options)
        opset = graph.graph.opset_imports[""]
        del graph
        gc.collect()  # graphs and networks refer to themselves, and keep files mapped as long as they live
        shutil.rmtree(stage / _WORK)
        manifest = prove(plan, decision, opset, stage, options, report, quantization)
    return Export(plan.target, manifest)


def write_own_tokenizer(plan: Plan, stage: Path) -> Tokenizer:
    """Write the bundle's tokenizer, compare it with the checkpoint's own, and return it."""
    write_tokenizer(stage, plan.model.tokenizer, plan.max_seq_length)
    compare_tokenizers(plan, stage)
    if plan.reference is not None:
        origin = Origin.of(describe_export(plan, Decision(None, None, None), OPSET, stage))
        check_reference(plan.reference, origin, plan.recipe.whitening.dim or plan.width)
    return plan.tokenizer(stage / TOKENIZER_FILE)


def build(plan: Plan, stage: Path) -> ir.Model:
    """Return the graph up to the vector before whitening, with weights in a file and no longer in memory."""
    hidden = plan.model.hidden_states(plan.layers, plan.pooling)
    graph = pool_graph(hidden, plan.composition, plan.model.record.hidden_size, plan.weighs)
    del hidden
    fold_positions(graph, plan.max_seq_length)
    graph = reopen_graph(graph, _unweighed(stage) if plan.weighs else stage / _WORK / MODEL_NAME)
    gc.collect()  # the network's weights
    return graph


def fold(plan: Plan, graph: ir.Model, decision: Decision, report: Reporter) -> None:
    """Fold whitening and normalisation into the graph, after the operators that CUDA has fused."""
    choice, fitted = plan.recipe.graph, decision.fitted
    affine = (fitted.mean, fitted.weight) if fitted is not None else None
    both = choice.outputs == "both" and affine is not None
    if choice.outputs == "both" and not both:
        report.warn("there is no whitening, so the graph gives one vector a text, not both")
    if choice.target == "cuda":
        report.stage("fusing operators for CUDA")
        if not fuse_for_cuda(graph, plan.max_seq_length):
            kind = plan.model.record.model_type
            report.warn(f"no attention of this {kind} network could be fused: CUDA runs it as it is")
    set_head(graph, affine, plan.normalize, both, choice.round_to)


def lower(
    plan: Plan, graph: ir.Model, stage: Path, tokenizer: Tokenizer, options: SessionOptions, report: Reporter
) -> tuple[ir.Model, QuantizationRecord | None]:
    """Return the graph in its precision; after the fit, so that vectors of all precisions can be compared."""
    choice, quantization = plan.recipe.graph, None
    if choice.precision != "fp32":
        report.stage(f"turning the weights into {choice.precision}, and {CHECKING}")
    if choice.precision == "fp16":
        (halve_network if choice.target == "cuda" else halve_weights)(graph)
    elif choice.precision == "int8":
        graph, quantization = _to_int8(plan, graph, stage / _WORK, tokenizer, options, report)
    if choice.target == "cpu":
        sum_residuals(graph)  # after all passes that look for Add
    return graph, quantization


def _to_int8(
    plan: Plan, graph: ir.Model, folder: Path, tokenizer: Tokenizer, options: SessionOptions, report: Reporter
) -> tuple[ir.Model, QuantizationRecord]:
    corpus = plan.corpus or Corpus((BUILTIN_CORPUS,), None, None)
    step = max(1, (plan.sentences or corpus.count()) // CALIBRATION_SENTENCES)
    sentences = with_prompt(plan.prompts.resolve(), list(islice(corpus, 0, step * CALIBRATION_SENTENCES, step)))
    vocabulary = Vocabulary.of(tokenizer, plan.model.vocab_size, min(plan.max_seq_length, LONGEST_PROBE))
    texts = calibration_texts(graph, tokenizer, sentences, vocabulary, plan.model.tokenizer.pad_token_id)
    far = far_texts(tokenizer, vocabulary)
    model, record = convert_to_int8(graph, texts, far, plan.max_seq_length, folder, options, report)
    if max(plan.layers) > 0 and not record.constant_scales + record.token_scales:
        report.warn(
            "no matrix product of this network can be computed in int8 (its layers may be convolutions), so it is no "
            "faster than fp32; only its embeddings are smaller"
        )
    return model, record


def write(
    plan: Plan, graph: ir.Model, decision: Decision, stage: Path, tokenizer: Tokenizer, options: SessionOptions
) -> None:
    """Write the graph, the whitening, and the files of other programs."""
    save_graph(graph, stage / MODEL_FILE)
    fitted, config, length = decision.fitted, plan.model.client_config, plan.max_seq_length
    dimension = plan.width if fitted is None else fitted.weight.shape[1]
    write_client_files(stage, config, dimension, length, plan.prompts, plan.similarity_fn_name)
    if fitted is not None:
        if plan.recipe.graph.precision != "fp32":
            shift = _precision_shift(plan, stage, tokenizer, options)
            fitted = dataclasses.replace(fitted, corpus_mean=fitted.corpus_mean + shift)
        write_whitening(stage, fitted)


def _unweighed(stage: Path) -> Path:
    return stage / _WORK / "layers" / MODEL_NAME


def _precision_shift(plan: Plan, stage: Path, tokenizer: Tokenizer, options: SessionOptions) -> Float64Array:
    """Return how far lower precision moves the mean of the vectors before whitening, so that drift can allow for it."""
    assert plan.corpus is not None
    step = max(1, plan.sentences // _SHIFT_SENTENCES)
    sentences = list(islice(plan.corpus, 0, step * _SHIFT_SENTENCES, step))
    means = []
    for path in (stage / _WORK / MODEL_NAME, stage / MODEL_FILE):
        with plan.embedder(path, tokenizer, options, UNWHITENED_OUTPUT) as embedder:
            means.append(embed_value(sentences, embedder, UNWHITENED_OUTPUT).mean(axis=0))
    return np.asarray(means[1] - means[0])
