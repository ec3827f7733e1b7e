"""Prove an export: compare its tokenizer, its graph and its reference with the model and with what it was made for."""

from itertools import islice
from pathlib import Path

import msgspec

from whiten_export.pipeline.choose_whitening import Decision
from whiten_export.pipeline.describe import describe_export, parity_record
from whiten_export.pipeline.plan import Plan
from whiten_export.proof.gate import (
    Definition,
    Expected,
    Request,
    Tokenized,
    check_bundle,
    check_rounding,
    check_tokens,
    compare_published,
    compute_expected,
    distinct_rows,
    failure,
    prompted_requests,
)
from whiten_export.proof.probe_texts import LONGEST_PROBE, TOKENIZER_TEXTS, probe_texts, token_batches
from whiten_export.proof.reference import Head
from whiten_export.writing.model_card import with_model_card
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.bundle.manifest import MANIFEST_FILE, Manifest
from whiten_runtime.bundle.parity import gate_of
from whiten_runtime.bundle.probes import write_probes
from whiten_runtime.bundle.records import ParityRecord, QuantizationRecord
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.inference.embedder import TEXT, with_prompt
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.doctor import check_provider
from whiten_runtime.ort.providers import import_onnxruntime
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningMap

_ANY_PROMPT = "Represent the sentence: "
"""Prompt with which models are checked that leave prompts out of the pooling, besides those that they name."""

_LONGEST_TEXT = 1 << 16
"""Maximum number of words of the text on which truncation is compared."""

_TOKENIZER_SENTENCES = 512
"""Number of sentences of the corpus on which both tokenizers are compared, besides the probes."""


def compare_tokenizers(plan: Plan, stage: Path) -> None:
    """Compare the bundle's tokenizer with the checkpoint's own, on texts with and without prompts."""
    tokenizer = plan.tokenizer(stage / TOKENIZER_FILE)
    sentences = islice(plan.corpus or Corpus((BUILTIN_CORPUS,), None, None), _TOKENIZER_SENTENCES)
    texts = [*probe_texts(min(plan.max_seq_length, _LONGEST_TEXT)), *TOKENIZER_TEXTS, *sentences]
    for prompt in dict.fromkeys(plan.prompts.texts.values()):
        texts += with_prompt(prompt, TOKENIZER_TEXTS) if prompt else []
    ours = [plan.model.tokenizer.plain(tokenizer.cut(row)) for row in tokenizer.tokenize(texts)]
    check_tokens(ours, plan.model.tokenizer.own_ids(texts, plan.max_seq_length), texts)


def prove(
    plan: Plan,
    decision: Decision,
    opset: int,
    stage: Path,
    options: SessionOptions,
    report: Reporter,
    quantization: QuantizationRecord | None = None,
) -> Manifest:
    """Compute the reference's vectors, write the manifest, and check the bundle at the parity gate."""
    report.stage("computing the reference's vectors")
    choice = plan.recipe.graph
    expected = _expected(plan, decision.fitted, stage, report)
    check_rounding(expected.finished, choice.vector_type)
    write_probes(stage, expected.probes)
    manifest = msgspec.structs.replace(describe_export(plan, decision, opset, stage), quantization=quantization)
    published = _compare_published(plan, expected, stage, report)
    manifest = msgspec.structs.replace(manifest, published=published)
    (stage / MANIFEST_FILE).write_bytes(manifest.to_json())
    report.stage(f"checking against {expected.reference}")
    if choice.target == "cuda":
        options = _on_cuda(options, report)
    agreement = check_bundle(stage, expected, options)
    if not gate_of(choice.precision, choice.vector_type).passes(agreement):
        raise failure(agreement, expected, choice.precision, choice.vector_type, _named(plan))
    manifest = msgspec.structs.replace(manifest, parity=parity_record(expected.reference, agreement, options))
    manifest = with_model_card(stage, manifest)
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
        "not verified on CUDA, which does not work here (whiten doctor --device cuda says why); where it does, "
        "run whiten verify BUNDLE --device cuda"
    )
    return options


def _expected(plan: Plan, fitted: WhiteningMap | None, stage: Path, report: Reporter) -> Expected:
    longest = min(plan.max_seq_length, LONGEST_PROBE)
    tokenizer = plan.tokenizer(stage / TOKENIZER_FILE)
    texts = probe_texts(longest)
    probes, *prompted = (
        _tokenized(plan, tokenizer, request) for request in (Request("", texts), *_prompted(plan, texts))
    )
    batches = token_batches(longest, plan.model.vocab_size, plan.model.tokenizer.pad_token_id)
    definition = Definition(
        reference=plan.model.reference(plan.layers, plan.pooling),
        composition=plan.composition,
        head=Head.of((fitted.mean, fitted.weight) if fitted else None, plan.normalize),
        hidden_size=plan.model.record.hidden_size,
    )
    total = sum(len(ids) for ids, _ in distinct_rows(probes, prompted, batches))
    with report.bar("tokens", total) as advance:
        return compute_expected(definition, probes, prompted, batches, advance)


def _prompted(plan: Plan, texts: tuple[str, ...]) -> tuple[Request, ...]:
    prompts = dict(plan.prompts.texts)
    if not plan.prompts.pooled:
        prompts |= {"whiten": _ANY_PROMPT}  # callers bring prompts of their own
    return prompted_requests(texts[:-1], prompts)


def _tokenized(plan: Plan, tokenizer: Tokenizer, request: Request) -> Tokenized:
    rows = tokenizer.tokenize(with_prompt(request.prompt, request.texts))
    ids = [plan.model.tokenizer.plain(tokenizer.cut(row)) for row in rows]
    return Tokenized(request, ids, 0 if plan.prompts.pooled else tokenizer.prompt_tokens(request.prompt))


def _compare_published(plan: Plan, expected: Expected, stage: Path, report: Reporter) -> ParityRecord | None:
    """Compare the reference with the program that the model was published for, if layers and modules are its own."""
    if not plan.keeps_modules or plan.own is None:
        return None
    texts = expected.probes.texts
    ids = plan.tokenizer(stage / TOKENIZER_FILE).tokenize(texts)
    with_tokens = tuple(text for text, row in zip(texts, ids, strict=True) if row)
    requests = (Request("", with_tokens), *(request for request in expected.requests if TEXT not in request.prompt))
    if len(requests) <= len(expected.requests):
        return None  # templates are not sentence-transformers'
    published = plan.model.published(requests, plan.max_seq_length)
    if published is None:
        return None
    report.stage(f"comparing the reference with {published.name}")
    agreement = compare_published(expected, published, requests, plan.own.normalize, plan.model.record.model)
    return parity_record(published.name, agreement)


def _named(plan: Plan) -> str:
    layers = ", ".join(map(str, plan.layers))
    return f"this {plan.model.record.model_type} network, layers {layers} with {plan.pooling} pooling,"
