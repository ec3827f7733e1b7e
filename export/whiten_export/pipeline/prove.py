"""Prove an export: compare tokenizer, graph and reference with the model, and complete the manifest."""

import dataclasses
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path

import msgspec

from whiten_export.pipeline.tools import Tools
from whiten_export.proof.gate import (
    Expected,
    Request,
    check_bundle,
    check_tokens,
    compare_published,
    compute_expected,
    failure,
    prompted_requests,
)
from whiten_export.proof.long_texts import long_texts, prove_long
from whiten_export.proof.probe_texts import LONGEST_PROBE, TOKENIZER_TEXTS, probe_texts, token_batches
from whiten_export.proof.reference import Head
from whiten_export.sources.describe.tokenizers import count_unknown
from whiten_export.writing.model_card import with_model_card
from whiten_runtime.bundle.bundle import file_record, list_files
from whiten_runtime.bundle.manifest import MANIFEST_FILE, Manifest
from whiten_runtime.bundle.parity import GATES, Agreement, write_probes
from whiten_runtime.bundle.records import FileRecord, ParityRecord
from whiten_runtime.bundle.space import with_space
from whiten_runtime.inference.options import TEXT, with_prompt
from whiten_runtime.ort.doctor import check_provider
from whiten_runtime.ort.providers import import_onnxruntime, provider_name
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningMap

_RECORDED = (
    "whiten",
    "torch",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
    "numpy",
)

CHECKING = "checking the vectors against those of the original model"
"""Last stage of an export; a lower precision names it together with its own stage."""

_ANY_PROMPT = "Represent the sentence: "
"""Prompt with which models are checked that leave prompts out of the pooling, besides those that they name."""

_LONGEST_TEXT = 1 << 16
"""Maximum number of words of the text on which truncation is compared."""

_TOKENIZER_SENTENCES = 512
"""Number of sentences of the corpus on which both tokenizers are compared, besides the probes."""

_MOST_UNKNOWN = 0.5
"""Share of unknown tokens above which an export warns; all-MiniLM-L6-v2 has none in English."""


def versions() -> dict[str, str]:
    """Return the versions of the programs that take part in an export, as far as they are installed."""
    versions_of = {"python": platform.python_version()}
    for name in _RECORDED:
        try:
            versions_of[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions_of


def parity_record(
    reference: str,
    agreement: Agreement,
    options: SessionOptions | None = None,
    max_tokens: int | msgspec.UnsetType = msgspec.UNSET,
) -> ParityRecord:
    """Describe an agreement for the manifest.

    `options` are those of the session, by default for the CPU; `max_tokens` is the length of the longest text.
    """
    provider = provider_name((options or SessionOptions()).providers[0])
    measured = dataclasses.asdict(agreement)
    measured.pop("norm_bias")  # the gate has bounded it
    return ParityRecord(reference=reference, provider=provider, max_tokens=max_tokens, **measured)


def seal(
    folder: Path,
    manifest: Manifest,
    fitted: WhiteningMap | None,
    expected: Expected,
    check: Callable[[Manifest, Expected], ParityRecord],
    unchanged: dict[str, FileRecord] | None = None,
) -> Manifest:
    """Write probes and manifest, check the bundle as it then is, and write card and manifest with the proof.

    Args:
        folder: files of the bundle.
        manifest: the draft, complete but for its files, its space and the proof.
        fitted: whitening of the bundle; None for none.
        expected: vectors of the reference before whitening.
        check: function that compares the bundle with the finished vectors of the reference.
        unchanged: records of files that stay those of another bundle.
    """
    affine = None if fitted is None else (fitted.mean, fitted.weight)
    expected = expected.finished_by(Head.of(affine, manifest.normalize))
    write_probes(folder, expected.probes)
    files = {name: file_record(folder / name) for name in list_files(folder)} | (unchanged or {})
    manifest = with_space(msgspec.structs.replace(manifest, files=files))
    (folder / MANIFEST_FILE).write_bytes(manifest.to_json())
    manifest = with_model_card(folder, msgspec.structs.replace(manifest, parity=check(manifest, expected)))
    (folder / MANIFEST_FILE).write_bytes(manifest.to_json())
    return manifest


def compare_tokenizers(manifest: Manifest, tools: Tools) -> None:
    """Compare the bundle's tokenizer with the checkpoint's own, on texts with and without prompts."""
    tokenizer, theirs, length = tools.tokenizer, tools.source.tokenizer, manifest.max_seq_length
    sentences = list(islice(tools.corpus, _TOKENIZER_SENTENCES))
    _warn_of_unknown(sentences, tools)
    texts = [*probe_texts(min(length, _LONGEST_TEXT)), *TOKENIZER_TEXTS, *sentences]
    for prompt in dict.fromkeys(manifest.prompts.values()):
        texts += with_prompt(prompt, TOKENIZER_TEXTS) if prompt else []
    ours = [theirs.plain(tokenizer.cut(row)) for row in tokenizer.tokenize(texts)]
    own = theirs.own_ids(texts, length)
    compared = [index for index, ids in enumerate(own) if max(ids, default=0) < tools.source.vocab_size]
    check_tokens([ours[i] for i in compared], [own[i] for i in compared], [texts[i] for i in compared])


def _warn_of_unknown(sentences: Sequence[str], tools: Tools) -> None:
    """Warn if most tokens of sentences are unknown to the tokenizer, so that vectors say little of them."""
    unknown, count = count_unknown(tools.source.tokenizer, tools.tokenizer.tokenize(sentences))
    if unknown > _MOST_UNKNOWN * count:
        of = " of the corpus" if tools.fit is not None else " of English"
        tools.report.warn(
            f"{unknown:,} of the {count:,} tokens of {len(sentences):,} sentences{of} are unknown to the model's "
            "tokenizer, and have one vector: check that it is the right tokenizer, with the right casing; if the model "
            "is for other texts than sentences, compare its vectors of those yourself"
        )


def expect(manifest: Manifest, tools: Tools) -> Expected:
    """Compute the reference's vectors before whitening: of probes, of texts with prompts, of batches of token ids."""
    source = tools.source
    longest = min(manifest.max_seq_length, LONGEST_PROBE)
    texts = probe_texts(longest)
    prompts = dict(manifest.prompts)
    if not manifest.include_prompt:
        prompts |= {"whiten": _ANY_PROMPT}  # callers bring prompts of their own
    requests = (Request("", texts), *prompted_requests(texts[:-1], prompts))
    batches = token_batches(longest, source.vocab_size, manifest.pad_token_id)
    tokenized = [_tokenized(manifest, tools, request) for request in requests]
    network = source.record.num_hidden_layers > 0
    long = _tokenized(manifest, tools, Request("", long_texts(manifest.max_seq_length) if network else ()))
    definition = source.definition(manifest)
    long_probes = prove_long(definition, long, tools.report)
    expected = compute_expected(definition, tokenized, batches, tools.report)
    rows = (ids for request in (*tokenized, long) for ids in request.ids)
    probes = dataclasses.replace(expected.probes, long=long_probes)
    return dataclasses.replace(expected, probes=probes, max_tokens=max(longest, *map(len, rows)))


def _tokenized(manifest: Manifest, tools: Tools, request: Request) -> Request:
    tokenizer = tools.tokenizer
    rows = tokenizer.tokenize(with_prompt(request.prompt, request.texts))
    ids = [tools.source.tokenizer.plain(tokenizer.cut(row)) for row in rows]
    left_out = 0 if manifest.include_prompt else tokenizer.prompt_tokens(request.prompt)
    return dataclasses.replace(request, ids=ids, left_out=left_out)


def prove(manifest: Manifest, fitted: WhiteningMap | None, expected: Expected, tools: Tools) -> Manifest:
    """Compare the reference with the program that the model was published for, and the bundle with the reference."""
    if manifest.precision == "fp32":
        tools.report.stage(CHECKING)
    published = _compare_published(manifest, expected, tools)
    manifest = msgspec.structs.replace(manifest, published=published, versions=versions())

    def check(manifest: Manifest, expected: Expected) -> ParityRecord:
        on = _on_cuda(tools.options, tools.report) if manifest.target == "cuda" else tools.options
        outcome = check_bundle(tools.folder, expected, on)
        if not GATES[manifest.precision].passes(outcome.agreement):
            raise failure(outcome, expected, manifest.precision, _named(manifest), _remedies(manifest, tools))
        return parity_record(expected.reference, outcome.agreement, on, expected.max_tokens)

    return seal(tools.folder, manifest, fitted, expected, check)


def _on_cuda(options: SessionOptions, report: Reporter) -> SessionOptions:
    """Return the session options for checking a bundle for CUDA: on a GPU if there is one, else those given."""
    cuda = SessionOptions.on_device("cuda")
    if not options.on_cpu:
        return options
    if check_provider(import_onnxruntime(), cuda.providers[0]).works:
        return cuda
    report.warn(
        "not verified on CUDA, which does not work here (whiten doctor --device cuda says why); where it does, "
        "run whiten verify BUNDLE --device cuda"
    )
    return options


def _compare_published(manifest: Manifest, expected: Expected, tools: Tools) -> ParityRecord | None:
    """Compare the reference with the program that the model was published for, if layers and modules are its own."""
    if not tools.source.is_authors(manifest.layers, manifest.pooling):
        return None
    texts = expected.probes.texts
    with_tokens = tuple(text for text, row in zip(texts, tools.tokenizer.tokenize(texts), strict=True) if row)
    requests = (Request("", with_tokens), *(request for request in expected.requests if TEXT not in request.prompt))
    if len(requests) <= len(expected.requests):
        return None  # templates are not sentence-transformers'
    published = tools.source.published(requests, manifest.max_seq_length)
    if published is None:
        return None
    normalize = tools.source.draft.normalize
    agreement = compare_published(expected, published, requests, normalize, manifest.source.model)
    return parity_record(published.name, agreement)


def _remedies(manifest: Manifest, tools: Tools) -> list[str]:
    """Return which choices of an export may let it pass the gate, of those that it has."""
    if manifest.whitening is None and manifest.precision == "fp32":
        return []
    others = ["other layers"] if len(tools.source.layers) > 1 else []
    authors = tools.source.is_authors(manifest.layers, manifest.pooling)
    pooled = ["mean pooling"] if manifest.pooling != "mean" and not authors else []
    return [*pooled, *others, *(["a smaller --dim", "--whitening none"] if manifest.whitening is not None else [])]


def _named(manifest: Manifest) -> str:
    layers = ", ".join(map(str, manifest.layers))
    return f"this {manifest.source.model_type} network, layers {layers} with {manifest.pooling} pooling,"
