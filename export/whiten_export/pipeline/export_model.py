"""Export a model from end to end: model, graph, whitening, files, parity gate. Nothing is published before the gate."""

import dataclasses
import gc
import shutil
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir

from whiten_export.graph.attention.blocks import SHORT, attend_in_blocks
from whiten_export.graph.builder import reopen_graph, save_graph
from whiten_export.graph.float16 import halve_network, halve_weights
from whiten_export.graph.fold_positions import fold_positions
from whiten_export.graph.fuse_cuda import fuse_for_cuda, fusions
from whiten_export.graph.head import set_head
from whiten_export.graph.int8.convert import Vocabulary, calibration_texts, convert_to_int8
from whiten_export.graph.memory import text_memory
from whiten_export.graph.products import sum_residuals
from whiten_export.pipeline.align import check_aligned
from whiten_export.pipeline.apply import apply, complete, default_name, open_source
from whiten_export.pipeline.choose_whitening import fit_whitening
from whiten_export.pipeline.own_vectors import check_own_vectors
from whiten_export.pipeline.prompts import check_prompts
from whiten_export.pipeline.prove import CHECKING, compare_tokenizers, expect, prove
from whiten_export.pipeline.recipe import Recipe
from whiten_export.pipeline.tools import Tools
from whiten_export.proof.probe_texts import LONGEST_PROBE
from whiten_export.writing.client_files import Export, write_client_files, write_tokenizer, write_whitening
from whiten_export.writing.staging import check_place, staged
from whiten_runtime.bundle.bundle import MODEL_FILE, TOKENIZER_FILE, file_record
from whiten_runtime.bundle.graph import UNWHITENED_OUTPUT
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.errors import instance_of, path_of
from whiten_runtime.inference.options import Prompts, with_prompt
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningMap
from whiten_whitening.moments import Float64Array
from whiten_whitening.statistics import embed_float64

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
    instance_of("recipe", recipe, Recipe, "Recipe('minilm', layers=(0, 1))")
    out = None if out is None else path_of("out", out)
    report = reporter or Reporter()
    if recipe.target == "cuda":
        fusions()  # a missing package is reported before the work
    if out is not None:
        check_place(out, replace)
    source = open_source(recipe, report)
    completed = complete(recipe, source)
    target = out or Path("bundles") / default_name(completed, source)
    if out is None:
        check_place(target, replace)
    manifest, fit = apply(completed, source, report)
    manifest = msgspec.structs.replace(manifest, name=target.absolute().name)
    with staged(target, replace) as stage:
        write_tokenizer(stage, source.tokenizer, manifest.max_seq_length)
        tokenizer = Tokenizer(stage / TOKENIZER_FILE, manifest.max_seq_length, manifest.truncation_side)
        tools = Tools(source, fit, stage, tokenizer, SessionOptions.on_device(recipe.device), report)
        manifest = check_texts(manifest, tools, recipe)
        manifest, graph = build(manifest, tools)
        expected = expect(manifest, tools)
        gc.collect()  # the network's weights: networks refer to themselves
        manifest, fitted = fit_whitening(manifest, _unwhitened(stage), tools)
        fold(manifest, graph, fitted, tools)
        manifest, graph = lower(manifest, graph, tools)
        write(manifest, graph, fitted, tools)
        del graph
        gc.collect()  # graphs refer to themselves, and keep files mapped as long as they live
        shutil.rmtree(stage / _WORK)
        manifest = prove(manifest, fitted, expected, tools)
    return Export(target, manifest)


def check_texts(manifest: Manifest, tools: Tools, recipe: Recipe) -> Manifest:
    """Compare the tokenizer with the checkpoint's own, and check what it makes of prompts and of the own outputs."""
    compare_tokenizers(manifest, tools)
    files = {TOKENIZER_FILE: file_record(tools.folder / TOKENIZER_FILE)}
    manifest = msgspec.structs.replace(manifest, files=files)
    if (fit := tools.fit) is not None and fit.aligned_to is not None:
        check_aligned(fit.aligned_to, manifest, fit.recipe.dim or manifest.unwhitened_width)
    check_prompts(manifest, tools)
    check_own_vectors(manifest, tools, recipe)
    return manifest


def build(manifest: Manifest, tools: Tools) -> tuple[Manifest, ir.Model]:
    """Return the graph up to the vector before whitening, with weights in a file and no longer in memory.

    The manifest gets the memory of a text, if some texts have more than 512 tokens.

    The file attends in blocks, as a whitening may be fitted on long texts; later passes look for whole attentions.
    """
    graph = tools.source.graph(manifest)
    fold_positions(graph, manifest.max_seq_length)
    path = _unwhitened(tools.folder)
    graph = reopen_graph(graph, path)
    in_blocks = ir.load(path)
    whole = attend_in_blocks(in_blocks, manifest.max_seq_length)
    ir.save(in_blocks, path)
    if manifest.max_seq_length > SHORT and tools.source.record.num_hidden_layers > 0:
        memory = text_memory(graph, manifest.max_seq_length, in_blocks=manifest.target == "cpu" and not whole)
        manifest = msgspec.structs.replace(manifest, memory=memory)
    return manifest, graph


def fold(manifest: Manifest, graph: ir.Model, fitted: WhiteningMap | None, tools: Tools) -> None:
    """Fold whitening and normalisation into the graph, after the operators that CUDA has fused."""
    if manifest.target == "cuda":
        tools.report.stage("fusing operators for CUDA")
        if not fuse_for_cuda(graph, manifest.max_seq_length):
            kind = manifest.source.model_type
            tools.report.warn(f"no attention of this {kind} network could be fused: CUDA runs it as it is")
    affine = None if fitted is None else (fitted.mean, fitted.weight)
    set_head(graph, affine, manifest.normalize)


def lower(manifest: Manifest, graph: ir.Model, tools: Tools) -> tuple[Manifest, ir.Model]:
    """Return the graph in its precision; after the fit, so that vectors of all precisions can be compared."""
    if manifest.precision != "fp32":
        tools.report.stage(f"turning the weights into {manifest.precision}, and {CHECKING}")
    if manifest.precision == "fp16":
        (halve_network if manifest.target == "cuda" else halve_weights)(graph)
    elif manifest.precision == "int8":
        manifest, graph = _to_int8(manifest, graph, tools)
    if manifest.target == "cpu":
        if whole := attend_in_blocks(graph, manifest.max_seq_length):
            tools.report.warn(
                f"{whole} attentions of this {manifest.source.model_type} network do not run in blocks, so that "
                "the memory of a text grows with the square of its tokens; --max-length 512 suits short texts"
            )
        sum_residuals(graph)  # after all passes that look for Add
    return msgspec.structs.replace(manifest, opset=graph.graph.opset_imports[""]), graph


def _to_int8(manifest: Manifest, graph: ir.Model, tools: Tools) -> tuple[Manifest, ir.Model]:
    tokenizer, length = tools.tokenizer, manifest.max_seq_length
    step = max(1, tools.sentences // CALIBRATION_SENTENCES)
    taken = list(islice(tools.corpus, 0, step * CALIBRATION_SENTENCES, step))
    sentences = with_prompt(Prompts.of(manifest).resolve(), taken)
    vocabulary = Vocabulary.of(tokenizer, tools.source.vocab_size, min(length, LONGEST_PROBE))
    texts = calibration_texts(graph, tokenizer, sentences, vocabulary, manifest.pad_token_id)
    model, record = convert_to_int8(graph, texts, length, tools.folder / _WORK, tools.options, tools.report)
    if max(manifest.layers) > 0 and not record.constant_scales + record.token_scales:
        tools.report.warn(
            "no matrix product of this network can be computed in int8 (its layers may be convolutions), so it is no "
            "faster than fp32; only its embeddings are smaller"
        )
    return msgspec.structs.replace(manifest, quantization=record), model


def write(manifest: Manifest, graph: ir.Model, fitted: WhiteningMap | None, tools: Tools) -> None:
    """Write the graph, the whitening, and the files of other programs."""
    save_graph(graph, tools.folder / MODEL_FILE)
    config, prompts, similarity = tools.source.client_config, Prompts.of(manifest), manifest.similarity_fn_name
    write_client_files(tools.folder, config, manifest.dimension, manifest.max_seq_length, prompts, similarity)
    if fitted is not None:
        if manifest.precision != "fp32":
            shift = _precision_shift(manifest, tools)
            fitted = dataclasses.replace(fitted, corpus_mean=fitted.corpus_mean + shift)
        write_whitening(tools.folder, fitted)


def _unwhitened(stage: Path) -> Path:
    return stage / _WORK / MODEL_NAME


def _precision_shift(manifest: Manifest, tools: Tools) -> Float64Array:
    """Return how far lower precision moves the mean of the vectors before whitening, so that drift can allow for it."""
    step = max(1, tools.sentences // _SHIFT_SENTENCES)
    sentences = list(islice(tools.corpus, 0, step * _SHIFT_SENTENCES, step))
    means = []
    for path in (_unwhitened(tools.folder), tools.folder / MODEL_FILE):
        with tools.embedder(manifest, path, UNWHITENED_OUTPUT) as embedder:
            means.append(embed_float64(sentences, embedder).mean(axis=0))
    return np.asarray(means[1] - means[0])
