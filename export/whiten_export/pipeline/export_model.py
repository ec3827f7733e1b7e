"""Export a model from end to end: model, graph, whitening, files, parity gate. Nothing is published before the gate."""

import dataclasses
import gc
import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import onnx_ir as ir

from whiten_export.corpus.fitting import embed_value
from whiten_export.corpus.statistics import Origin
from whiten_export.graph.files import reopen_graph, save_graph
from whiten_export.graph.fold_positions import fold_positions
from whiten_export.graph.fuse_cuda import fuse_for_cuda, fusions
from whiten_export.graph.head import OPSET, set_head
from whiten_export.graph.pooling import pool_graph
from whiten_export.graph.products import sum_residuals
from whiten_export.pipeline.align import check_reference
from whiten_export.pipeline.choose_whitening import Decision, decide, weigh_layers
from whiten_export.pipeline.describe import describe_export
from whiten_export.pipeline.lower_precision import lower_precision
from whiten_export.pipeline.plan import Plan, make_plan, without_whitening
from whiten_export.pipeline.prove import compare_tokenizers, prove
from whiten_export.pipeline.recipe import Recipe
from whiten_export.writing.client_files import Export, write_client_files, write_tokenizer, write_whitening
from whiten_export.writing.staging import staged
from whiten_runtime.bundle.bundle import MODEL_FILE, TOKENIZER_FILE
from whiten_runtime.bundle.graph_names import UNWHITENED_OUTPUT
from whiten_runtime.checks import instance_of, path_of
from whiten_runtime.inference.loading import load_graph
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.moments import Float64Array

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
    plan = make_plan(recipe, out, replace, report)
    choice = plan.recipe.graph
    record = plan.model.record
    with staged(plan.target, replace) as stage:
        write_tokenizer(stage, plan.model.tokenizer, plan.max_seq_length)
        compare_tokenizers(plan, stage)
        if plan.reference is not None:
            check_reference(plan.reference, _origin(plan, stage), plan.recipe.whitening.dim or plan.width)
        report.stage(
            f"making a graph of {record.model_type}, layers {', '.join(map(str, plan.layers))} of "
            f"{record.num_hidden_layers}, {plan.width} wide"
        )
        graph = _graph(plan, stage / _WORK / ("layers" if plan.weighs else "") / MODEL_NAME)
        tokenizer = plan.tokenizer(stage / TOKENIZER_FILE)
        if plan.weighs:
            paths = stage / _WORK / "layers" / MODEL_NAME, stage / _WORK / MODEL_NAME
            plan, graph = weigh_layers(plan, graph, paths, tokenizer, options, report)
        decision = decide(plan, stage / _WORK / MODEL_NAME, tokenizer, options, report)
        fitted = decision.fitted
        if fitted is None and plan.recipe.whitening.method == "auto":
            plan = without_whitening(plan)
            choice = plan.recipe.graph
        affine = (fitted.mean, fitted.weight) if fitted is not None else None
        both = choice.outputs == "both" and affine is not None
        if choice.outputs == "both" and not both:
            report.warn("there is no whitening, so the graph gives one vector a text, not both")
        if choice.target == "cuda":
            report.stage("fusing operators for CUDA")
            if not fuse_for_cuda(graph, plan.max_seq_length):
                report.warn(f"no attention of this {record.model_type} network could be fused: CUDA runs it as it is")
        set_head(graph, affine, bool(choice.normalize), both, choice.vectors)
        dimension = plan.width if fitted is None else fitted.weight.shape[1]
        quantization = None
        if choice.precision != "fp32":
            report.stage(f"turning the weights into {choice.precision}")
            # After the fit, so that vectors of all precisions can be compared.
            graph, quantization = lower_precision(plan, graph, tokenizer, stage / _WORK, options, report)
        if choice.target == "cpu":
            sum_residuals(graph)  # after all passes that look for Add
        save_graph(graph, stage / MODEL_FILE)
        config, length = plan.model.client_config, plan.max_seq_length
        write_client_files(stage, config, dimension, length, plan.prompts, plan.similarity_fn_name)
        if fitted is not None:
            if choice.precision != "fp32":
                shift = _precision_shift(plan, stage, tokenizer, options)
                fitted = dataclasses.replace(fitted, corpus_mean=fitted.corpus_mean + shift)
            write_whitening(stage, fitted)
        opset = graph.graph.opset_imports[""]
        del graph
        gc.collect()  # graphs and networks refer to themselves, and keep files mapped as long as they live
        shutil.rmtree(stage / _WORK)
        manifest = prove(plan, decision, opset, stage, options, report, quantization)
    return Export(plan.target, manifest)


def _origin(plan: Plan, stage: Path) -> Origin:
    """Return the origin of the vectors that will be fitted on."""
    return Origin.of(describe_export(plan, Decision(None, None, None), OPSET, stage))


def _graph(plan: Plan, path: Path) -> ir.Model:
    """Return the graph up to the vector before whitening, with weights in a file and no longer in memory."""
    hidden = plan.model.hidden_states(plan.layers, plan.pooling)
    graph = pool_graph(hidden, plan.composition, plan.model.record.hidden_size, plan.weighs)
    del hidden
    fold_positions(graph, plan.max_seq_length)
    graph = reopen_graph(graph, path)
    gc.collect()  # the network's weights
    return graph


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
