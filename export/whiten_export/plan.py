"""Plan an export: what it would write, and how much memory, disk and time it takes. Nothing is loaded or written."""

from pathlib import Path

import msgspec

from whiten_export.draft import draft_export
from whiten_export.fit import FitJob
from whiten_export.proof.probe_texts import LONGEST_PROBE
from whiten_export.recipe import Recipe
from whiten_export.sources.model import TokenModel, WeightCounts
from whiten_export.work import one_at_a_time
from whiten_runtime.bundle.manifest import Manifest, Precision
from whiten_runtime.ort.processor import usable_memory
from whiten_runtime.reporter import Reporter

_BASE = 600_000_000
"""Memory of a process that has imported PyTorch, transformers and onnxruntime, and of what a small network takes."""

_BASE_RECORDED = 250_000_000
"""The same without PyTorch and transformers, for models that were recorded; their weights are all read."""

_TOKEN_BYTES, _PIECE_BYTES = 800, 2800
"""Memory of the tokenizers of an export, of which two are in memory at the peak, for each token; the second of
Unigram's pieces, which are in a trie."""

_TABLE_SHARE = 4.0
"""Memory of an export of a table of vectors over its float32 weights."""

_TEXT_BYTES = 400
"""Memory of a text for each of its tokens and each coordinate of a hidden state, by PyTorch in float32."""

_SCORE_BYTES = 30
"""Memory for each head and each pair of tokens of the longest text, where attention is not fused: by onnxruntime, which
computes the two longest texts together at last."""

_WEIGHT_BYTES: dict[Precision, int] = {"fp32": 4, "fp16": 2, "int8": 1}

_WORK_BYTES = 4
"""Bytes of disk for each exported weight while an export works: its graph in float32."""

_OTHERS = 600_000
"""Bytes of the other files of a bundle: the graph without weights, probes, manifest and card."""

_START, _SECONDS_OF_WEIGHT = 12.0, 30e-9
"""Seconds of an export besides products of matrices: in all, and for each weight that is loaded, written and hashed."""

_OPERATIONS = 150e9
"""Operations a second, in float32, of two cores of an AMD EPYC with AVX-512: 40e9 planned 23 minutes where BERT-base
took 4.5 (benchmarks/full_size/table.md)."""

_TOKENS, _TOKENS_OF_SENTENCE = 40_000, 30
"""Tokens that a proof computes, each as long as one in float32, and tokens of a sentence of the corpus."""

_PASSES = 4
"""Times that the longest text is computed, and a text of half its length: by the model, and by the bundle twice."""

_INT8_SECONDS = 0.6e-9
"""Seconds of calibration and rounding for each weight of a matrix product and each coordinate."""

_INT8_ROW_BYTES, _INT8_GRAM_BYTES = 112_000, 64
"""Further bytes of disk while an export to int8 works, for each layer and coordinate, and for each pair of coordinates:
sampled tokens of its activations, and their Gram matrices."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Says what an export would write, and estimates what it takes."""

    bundle: str
    """Directory that would be created."""
    manifest: Manifest
    """Manifest of the bundle, as far as it is known."""
    whitening: str | None
    """Method of the whitening that would be fitted, or "auto"; None for none."""
    sentences: int
    """Number of sentences to fit on; 0 without a whitening."""
    weights: int
    """Number of weights of the model, all of which are loaded."""
    memory_bytes: int
    """Estimate of the process's own memory at its peak; files that are mapped come on top, and can be dropped."""
    usable_bytes: int
    """Memory of the machine, or the limit of the cgroup if that is less."""
    bundle_bytes: int
    """Estimate of the size of the bundle."""
    work_bytes: int
    """Estimate of further disk that is taken while the export works."""
    seconds: int
    """Rough estimate of the time, without downloads, on two cores."""


@one_at_a_time
def plan_export(
    recipe: Recipe, out: Path | None = None, replace: bool = False, reporter: Reporter | None = None
) -> Plan:
    """Plan an export as `export_bundle` would do it, without downloading the weights of a network.

    Raises:
        UsageError: the recipe is not valid for the model, the corpus or the directory.
        WhitenError: the model cannot be read.
    """
    report = reporter or Reporter()
    draft = draft_export(recipe, out, replace, report, with_weights=False)
    source, manifest, job = draft.source, draft.manifest, draft.job
    counts = source.count_weights(manifest.layers)
    memory = memory_bytes(counts, source, manifest)
    warn_of_memory(memory, manifest, report)
    whitening = None
    if job is not None:
        manifest = msgspec.structs.replace(manifest, dimension=job.dimension or manifest.dimension)
        whitening = "auto" if job.chooses else job.spec.method if job.spec is not None else "none"
    return Plan(
        bundle=str(draft.target),
        manifest=manifest,
        whitening=whitening,
        sentences=0 if job is None else job.sentences,
        weights=counts.loaded,
        memory_bytes=memory,
        usable_bytes=usable_memory(),
        bundle_bytes=_bundle_bytes(counts.exported, source, manifest, job),
        work_bytes=_work_bytes(counts.exported, manifest),
        seconds=round(_seconds(counts.exported, source, manifest, job)),
    )


def warn_of_memory(needed: int, manifest: Manifest, report: Reporter) -> None:
    """Warn where the memory of this machine is less than an export needs."""
    usable = usable_memory()
    if needed > usable:
        report.warn(
            f"the export of {manifest.source.model} in {manifest.precision} takes about {needed / 1e9:.1f} GB of "
            f"memory, and this process may use {usable / 1e9:.1f} GB: use a machine or a container with more, or a "
            "smaller model"
        )


def memory_bytes(counts: WeightCounts, source: TokenModel, manifest: Manifest) -> int:
    """Estimate the memory at the peak: of weights that are no pages of a file, of tokenizers, and of the longest text.

    A session packs the weights of products; PyTorch holds all, in float32, where the checkpoint has less.
    """
    if not manifest.source.num_hidden_layers:
        return _BASE + round(_TABLE_SHARE * 4 * counts.loaded)
    stored = source.client_config.get("dtype", source.client_config.get("torch_dtype"))
    recorded = bool(source.versions)
    wide = recorded or stored in ("float16", "bfloat16")
    weights = counts.loaded if wide else _in_products(counts.exported, source, manifest)
    token = _PIECE_BYTES if '"type":"Unigram"' in source.tokenizer.json else _TOKEN_BYTES
    length = manifest.max_seq_length
    text = _TEXT_BYTES * manifest.source.hidden_size * length + _SCORE_BYTES * counts.score_heads * length**2
    return (_BASE_RECORDED if recorded else _BASE) + 4 * weights + token * source.vocab_size + text


def _in_products(weights: int, source: TokenModel, manifest: Manifest) -> int:
    """Return the number of weights of products of matrices: all but the word embeddings."""
    return max(weights - source.vocab_size * manifest.source.hidden_size, 0)


def _bundle_bytes(weights: int, source: TokenModel, manifest: Manifest, job: FitJob | None) -> int:
    """Estimate the size of a bundle: weights, tokenizer, and the whitening with its covariance in float64."""
    width, dimension = manifest.unwhitened_width, manifest.dimension
    whitening = 0 if job is None else 8 * width * (width + dimension) + 4 * width * dimension
    return _WEIGHT_BYTES[manifest.precision] * weights + len(source.tokenizer.json.encode()) + whitening + _OTHERS


def _work_bytes(weights: int, manifest: Manifest) -> int:
    """Estimate the disk that an export takes while it works."""
    calibration = 0
    if manifest.precision == "int8":
        width = manifest.source.hidden_size
        calibration = max(manifest.layers) * width * (_INT8_ROW_BYTES + _INT8_GRAM_BYTES * width)
    return _WORK_BYTES * weights + calibration


def _seconds(weights: int, source: TokenModel, manifest: Manifest, job: FitJob | None) -> float:
    """Estimate the time from the products of matrices that an export computes."""
    width = manifest.source.hidden_size
    body = _in_products(weights, source, manifest)
    tokens = _TOKENS + _TOKENS_OF_SENTENCE * (0 if job is None else job.sentences)
    operations = 2.0 * body * tokens
    if (length := manifest.max_seq_length) > LONGEST_PROBE:
        attention = 4 * length**2 * width * max(manifest.layers)
        operations += _PASSES * (2 * body * length + attention)
    seconds = _START + _SECONDS_OF_WEIGHT * weights + operations / _OPERATIONS
    return seconds + (_INT8_SECONDS * body * width if manifest.precision == "int8" else 0)
