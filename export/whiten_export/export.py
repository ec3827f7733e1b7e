"""Export a bundle: check, graph, reference, whitening, head, precision, files, proof. Nothing is published before it.

The manifest is filled in at eight places: the model's `draft`; the choices, in `draft.draft_manifest`; the tokenizer's
file, in `write_source_files`; the memory of a text, in `build_graph`; the whitening, in `fit.fit_whitening`; the
precision, in `to_precision`; and versions and files, then the parity, in `prove.prove`. `refit` does the same for
bundles that get another whitening and for files of vectors, which have no model: fit, head, files, proof.
"""

import dataclasses
import shutil
from functools import partial
from itertools import islice
from pathlib import Path
from typing import assert_never

import msgspec
import numpy as np
import onnx_ir as ir

from whiten_export.bundle_files import (
    Export,
    write_client_files,
    write_tokenizer,
    write_whitening,
)
from whiten_export.draft import draft_export
from whiten_export.fit import affine, check_job, fit_options, fit_whitening
from whiten_export.graph.attention import lower_attention, text_memory
from whiten_export.graph.build import reopen_graph, save_graph, sum_residuals
from whiten_export.graph.cuda import fuse_for_cuda
from whiten_export.graph.ends import set_head
from whiten_export.graph.int8 import Vocabulary, calibration_texts, convert_to_int8
from whiten_export.graph.precision import halve_network, halve_weights
from whiten_export.plan import memory_bytes, warn_of_memory
from whiten_export.proof.gate import Expected
from whiten_export.proof.probe_texts import LONGEST_PROBE
from whiten_export.prove import CHECKING, check_texts, check_unrounded, prove, reference_vectors
from whiten_export.recipe import Recipe
from whiten_export.staging import staged
from whiten_export.work import UNWHITENED_GRAPH, Work, free_memory, one_at_a_time
from whiten_runtime.bundle.bundle import MODEL_FILE, TOKENIZER_FILE, file_record
from whiten_runtime.bundle.graph import scan_graph, unwanted
from whiten_runtime.bundle.manifest import SHORT, Manifest, QuantizationRecord
from whiten_runtime.errors import UnsafeModelError
from whiten_runtime.inference.options import Prompts, with_prompt
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningMap
from whiten_whitening.moments import Float64Array
from whiten_whitening.statistics import embed_float64

CALIBRATION_SENTENCES = 192
"""Number of sentences on which the ranges of int8 are measured."""

_SHIFT_SENTENCES = 1024
"""Number of sentences of the corpus on which precisions are compared."""


@one_at_a_time
def export_bundle(
    recipe: Recipe, out: str | Path | None = None, replace: bool = False, reporter: Reporter | None = None
) -> Export:
    """Export a model to a bundle; in a process, one at a time.

    It changes levels of logging and numbers of threads of torch and transformers, and restores them.

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
    draft = draft_export(recipe, out, replace, report)
    source, manifest, job = draft.source, draft.manifest, draft.job
    warn_of_memory(memory_bytes(source.count_weights(manifest.layers), source, manifest), manifest, report)
    overrides = recipe.pooling is not None or (
        recipe.layers is not None and manifest.layers != (manifest.source.num_hidden_layers,)
    )
    corpus = job.corpus if job is not None and job.corpus is not None else recipe.corpus_for(None)
    options = SessionOptions.on_device(recipe.device)
    with staged(draft.target, replace, report=report) as stage:
        work = Work(source, manifest, job, corpus, stage, options, report)
        return Export(draft.target, export(manifest, work, overrides))


def export(manifest: Manifest, work: Work, overrides: bool) -> Manifest:
    """Make a bundle of a model in the folder of the work, and prove it; return its manifest.

    `overrides` says whether the caller names a pooling, or other layers than the last.
    """
    manifest = write_source_files(manifest, work, overrides)
    manifest, graph = build_graph(manifest, work)
    free_memory()  # of the trace
    expected = reference_vectors(manifest, work)
    free_memory()  # the network's weights
    unwhitened = work.folder / UNWHITENED_GRAPH
    manifest, fitted = fit_whitening(manifest, work.job, partial(work.embedder, unwhitened), "fp32", work.report)
    append_head(manifest, graph, fitted, expected, work)
    manifest, graph = to_precision(manifest, graph, work)
    write_files(manifest, graph, fitted, work)
    del graph
    free_memory()  # graphs keep files mapped as long as they live
    shutil.rmtree(unwhitened.parent)
    return prove(manifest, fitted, expected, work)


def write_source_files(manifest: Manifest, work: Work, overrides: bool) -> Manifest:
    """Write the tokenizer, and check what comes before a graph.

    It sets the tokenizer in the manifest's `files`, which says from which model vectors are.
    """
    write_tokenizer(work.folder, work.model.tokenizer, manifest.max_seq_length)
    check_texts(manifest, work, overrides)
    files = {TOKENIZER_FILE: file_record(work.folder / TOKENIZER_FILE)}
    manifest = msgspec.structs.replace(manifest, files=files)
    check_job(work.job, manifest)
    return manifest


def build_graph(manifest: Manifest, work: Work) -> tuple[Manifest, ir.Model]:
    """Return the graph up to the vector before whitening; a model's has its weights in a file, not in memory.

    It sets the manifest's `source`, and `memory`, if texts may be long. The attentions of the file are lowered, as a
    whitening is fitted with it; those of the graph stay marked for later passes.
    """
    graph, path = work.model.graph(manifest), work.folder / UNWHITENED_GRAPH
    manifest = msgspec.structs.replace(manifest, source=work.model.record)
    check_job(work.job, manifest)
    graph = reopen_graph(graph, path)
    lowered = ir.load(path)
    whole = lower_attention(lowered, manifest.max_seq_length)
    ir.save(lowered, path)
    if (what := unwanted(scan_graph(path), "cpu")) is not None:
        raise UnsafeModelError(f"this {manifest.source.model_type} network has {what}: it is not supported")
    if manifest.max_seq_length > SHORT and manifest.source.num_hidden_layers:
        memory = text_memory(graph, manifest.max_seq_length, in_blocks=manifest.target == "cpu" and not whole)
        memory = msgspec.structs.replace(memory, token_bytes=memory.token_bytes + work.model.expert_bytes)
        manifest = msgspec.structs.replace(manifest, memory=memory)
    return manifest, graph


def append_head(
    manifest: Manifest, graph: ir.Model, fitted: WhiteningMap | None, expected: Expected, work: Work
) -> None:
    """Append whitening and normalisation to a graph, after operators are fused for CUDA.

    A graph that is to be rounded is checked before.
    """
    if manifest.target == "cuda":
        work.report.stage("fusing operators for CUDA")
        if not fuse_for_cuda(graph):
            kind = manifest.source.model_type
            work.report.warn(f"no attention of this {kind} network could be fused: CUDA runs it as it is")
    if manifest.precision != "fp32":
        work.report.stage(f"turning the weights into {manifest.precision}, and {CHECKING}")
        check_unrounded(manifest, graph, expected, work)
    set_head(graph, affine(fitted), manifest.normalize)


def to_precision(manifest: Manifest, graph: ir.Model, work: Work) -> tuple[Manifest, ir.Model]:
    """Return a graph in its precision; after the fit, so that vectors of all precisions can be compared.

    It sets the manifest's `quantization` and `opset`.
    """
    quantization = None
    match manifest.precision:
        case "fp32":
            pass
        case "fp16":
            (halve_network if manifest.target == "cuda" else halve_weights)(graph)
        case "int8":
            quantization, graph = _to_int8(manifest, graph, work)
        case other:
            assert_never(other)
    if manifest.target == "cpu":
        if whole := lower_attention(graph, manifest.max_seq_length):
            work.report.warn(
                f"{whole} attentions of this {manifest.source.model_type} network do not run in blocks, so that "
                "the memory of a text grows with the square of its tokens; --max-length 512 suits short texts"
            )
        sum_residuals(graph)  # after all passes that look for Add
    opset = graph.graph.opset_imports[""]
    return msgspec.structs.replace(manifest, quantization=quantization, opset=opset), graph


def _to_int8(manifest: Manifest, graph: ir.Model, work: Work) -> tuple[QuantizationRecord, ir.Model]:
    tokenizer, length = work.tokenizer, manifest.max_seq_length
    step = max(1, work.sentences // CALIBRATION_SENTENCES)
    taken = list(islice(work.corpus, 0, step * CALIBRATION_SENTENCES, step))
    sentences = with_prompt(Prompts.of(manifest).resolve(), taken)
    vocabulary = Vocabulary.of(tokenizer, work.model.vocab_size, min(length, LONGEST_PROBE))
    texts = calibration_texts(graph, tokenizer, sentences, vocabulary, manifest.pad_token_id)
    place = (work.folder / UNWHITENED_GRAPH).parent
    model, record = convert_to_int8(graph, texts, place, work.options, work.report)
    if max(manifest.layers) > 0 and not record.constant_scales + record.token_scales:
        work.report.warn(
            "no matrix product of this network can be computed in int8 (its layers may be convolutions), so it is no "
            "faster than fp32; only its embeddings are smaller"
        )
    return record, model


def write_files(manifest: Manifest, graph: ir.Model, fitted: WhiteningMap | None, work: Work) -> None:
    save_graph(graph, work.folder / MODEL_FILE)
    config, prompts, similarity = work.model.client_config, Prompts.of(manifest), manifest.similarity_fn_name
    write_client_files(work.folder, config, manifest.dimension, manifest.max_seq_length, prompts, similarity)
    if fitted is not None:
        if manifest.precision != "fp32":
            fitted = dataclasses.replace(fitted, corpus_mean=fitted.corpus_mean + _precision_shift(work))
        write_whitening(work.folder, fitted)


def _precision_shift(work: Work) -> Float64Array:
    """Return how far lower precision moves the mean of the vectors before whitening, so that drift can allow for it."""
    step = max(1, work.sentences // _SHIFT_SENTENCES)
    sentences = list(islice(work.corpus, 0, step * _SHIFT_SENTENCES, step))
    means = []
    for path in (work.folder / UNWHITENED_GRAPH, work.folder / MODEL_FILE):
        with work.embedder(path) as embedder:
            means.append(embed_float64(sentences, embedder, fit_options(work.draft, work.job, embedder)).mean(axis=0))
    return np.asarray(means[1] - means[0])
