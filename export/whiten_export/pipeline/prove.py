"""Prove an export and describe it: compare tokenizer, graph and reference with the model, and make the manifest."""

import dataclasses
import platform
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_export.corpus.statistics import Statistics
from whiten_export.pipeline.choose_whitening import Decision
from whiten_export.pipeline.plan import Plan
from whiten_export.proof.gate import (
    Definition,
    Expected,
    Request,
    check_bundle,
    check_rounding,
    check_tokens,
    compare_published,
    compute_expected,
    failure,
    prompted_requests,
)
from whiten_export.proof.probe_texts import LONGEST_PROBE, TOKENIZER_TEXTS, probe_texts, token_batches
from whiten_export.proof.reference import Head
from whiten_export.writing.model_card import write_proven
from whiten_runtime.bundle.bundle import TOKENIZER_FILE, file_record, list_files
from whiten_runtime.bundle.manifest import FORMAT_VERSION, Manifest
from whiten_runtime.bundle.parity import Agreement, gate_of, write_probes
from whiten_runtime.bundle.records import (
    AlignmentRecord,
    IsotropyRecord,
    ParityRecord,
    QuantizationRecord,
    WhiteningRecord,
)
from whiten_runtime.bundle.space import with_space
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.inference.embedder import TEXT, with_prompt
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.inference.vectors import unit
from whiten_runtime.ort.doctor import check_provider
from whiten_runtime.ort.providers import import_onnxruntime, provider_name
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter
from whiten_whitening.isotropy import average_cosine, iso_score, partition_score
from whiten_whitening.maps import EIGENVALUE_FLOOR, WhiteningMap
from whiten_whitening.moments import Float64Array, Moments

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


def describe_whitening(
    fitted: WhiteningMap | None, statistics: Statistics | None, alignment: AlignmentRecord | None = None
) -> WhiteningRecord | None:
    """Describe for the manifest how a map was fitted, aligned with another, and how it changes isotropy."""
    if fitted is None or statistics is None:
        return None
    spec, sample = fitted.spec, statistics.sample.vectors
    before, after = measure_isotropy(fitted, statistics)
    return WhiteningRecord(
        method=spec.method if spec else "none",
        common_components=fitted.common_components,
        beta=spec.beta if spec else 0.0,
        shrinkage=fitted.alpha,
        shrinkage_estimator=spec.estimator if spec else "none",
        eigenvalue_floor=EIGENVALUE_FLOOR,
        rank=fitted.rank,
        n_samples=fitted.n_samples,
        settled=statistics.settled,
        corpus=statistics.corpus,
        sample=len(sample),
        isotropy_before=before,
        isotropy_after=after,
        alignment=alignment,
    )


def measure_isotropy(fitted: WhiteningMap, statistics: Statistics) -> tuple[IsotropyRecord, IsotropyRecord]:
    """Measure the isotropy of the corpus's vectors before and after a map.

    IsoScore is measured on all vectors. The average cosine is measured on all vectors before the map, where it can be
    streamed, and on the sample after it. The partition score is measured on the sample's unit vectors, because it
    depends on scale, which a whitening changes and cosines ignore.
    """
    moments, raw = statistics.moments, statistics.sample.vectors
    white = (raw.astype(np.float64) - fitted.mean) @ fitted.weight
    covariances = moments.covariance, moments.affine(fitted.mean, fitted.weight).covariance
    before = _isotropy(covariances[0], moments, raw)
    return before, _isotropy(covariances[1], Moments.of(white), white)


def _isotropy(covariance: Float64Array, moments: Moments, sample: NDArray[np.floating]) -> IsotropyRecord:
    return IsotropyRecord(
        iso_score=iso_score(covariance),
        average_cosine=average_cosine(moments),
        partition_score=partition_score(unit(sample.astype(np.float32))),
    )


def parity_record(reference: str, agreement: Agreement, options: SessionOptions | None = None) -> ParityRecord:
    """Describe an agreement for the manifest; `options` are those of the session, by default for the CPU."""
    provider = provider_name((options or SessionOptions()).providers[0])
    measured = dataclasses.asdict(agreement)
    measured.pop("norm_bias")  # the gate has bounded it
    return ParityRecord(reference=reference, provider=provider, **measured)


def versions() -> dict[str, str]:
    """Return the versions of the programs that take part in an export, as far as they are installed."""
    found = {"python": platform.python_version()}
    for name in _RECORDED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def describe_export(plan: Plan, decision: Decision, opset: int, stage: Path) -> Manifest:
    """Return the manifest of the files in `stage`, without parity."""
    graph, fitted = plan.recipe.graph, decision.fitted
    composition, own = plan.composition, plan.own
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=plan.target.absolute().name,
        source=plan.model.record,
        input="text",
        layers=plan.layers,
        layer_weights=composition.layer_weights,
        pooling=plan.pooling,
        include_prompt=composition.include_prompt,
        modules=tuple(map(str, composition.modules)),
        unwhitened_dimension=None if plan.width == plan.model.record.hidden_size else plan.width,
        prompts=dict(plan.prompts.texts),
        default_prompt_name=plan.prompts.default,
        truncation_side=plan.model.tokenizer.truncation_side,
        similarity_fn_name=plan.similarity_fn_name,
        matryoshka_dimensions=() if fitted else plan.matryoshka_dimensions,
        route=None if own is None else own.route,
        whitening=describe_whitening(fitted, decision.statistics, decision.alignment),
        choice=decision.choice,
        normalize=plan.normalize,
        outputs=graph.outputs if fitted else "whitened",
        vectors=graph.round_to,
        dimension=plan.width if fitted is None else fitted.weight.shape[1],
        max_seq_length=plan.max_seq_length,
        pad_token_id=plan.model.tokenizer.pad_token_id,
        precision=graph.precision,
        target=graph.target,
        opset=opset,
        versions=versions(),
        parity=None,
        files={name: file_record(stage / name) for name in list_files(stage)},
    )
    return with_space(manifest)


CHECKING = "checking the vectors against those of the original model"
"""Last stage of an export; a lower precision names it together with its own stage."""

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
    own = plan.model.tokenizer.own_ids(texts, plan.max_seq_length)
    compared = [index for index, ids in enumerate(own) if max(ids, default=0) < plan.model.vocab_size]
    check_tokens([ours[i] for i in compared], [own[i] for i in compared], [texts[i] for i in compared])


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
    choice = plan.recipe.graph
    if choice.precision == "fp32":
        report.stage(CHECKING)
    expected = _expected(plan, decision.fitted, stage, report)
    check_rounding(expected.finished, choice.round_to)
    write_probes(stage, expected.probes)
    published = _compare_published(plan, expected, stage)
    manifest = describe_export(plan, decision, opset, stage)
    manifest = msgspec.structs.replace(manifest, quantization=quantization, published=published)

    def proof() -> ParityRecord:
        on = _on_cuda(options, report) if choice.target == "cuda" else options
        outcome = check_bundle(stage, expected, on)
        if not gate_of(choice.precision, choice.round_to).passes(outcome.agreement):
            remedies = _remedies(plan, decision.fitted)
            raise failure(outcome, expected, choice.precision, choice.round_to, _named(plan), remedies)
        return parity_record(expected.reference, outcome.agreement, on)

    return write_proven(stage, manifest, proof)


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
    prompts = dict(plan.prompts.texts)
    if not plan.prompts.pooled:
        prompts |= {"whiten": _ANY_PROMPT}  # callers bring prompts of their own
    requests = (Request("", texts), *prompted_requests(texts[:-1], prompts))
    batches = token_batches(longest, plan.model.vocab_size, plan.model.tokenizer.pad_token_id)
    definition = Definition(
        reference=plan.model.reference(plan.layers, plan.pooling),
        composition=plan.composition,
        head=Head.of((fitted.mean, fitted.weight) if fitted else None, plan.normalize),
        hidden_size=plan.model.record.hidden_size,
    )
    return compute_expected(definition, [_tokenized(plan, tokenizer, one) for one in requests], batches, report)


def _tokenized(plan: Plan, tokenizer: Tokenizer, request: Request) -> Request:
    rows = tokenizer.tokenize(with_prompt(request.prompt, request.texts))
    ids = [plan.model.tokenizer.plain(tokenizer.cut(row)) for row in rows]
    left_out = 0 if plan.prompts.pooled else tokenizer.prompt_tokens(request.prompt)
    return dataclasses.replace(request, ids=ids, left_out=left_out)


def _compare_published(plan: Plan, expected: Expected, stage: Path) -> ParityRecord | None:
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
    agreement = compare_published(expected, published, requests, plan.own.normalize, plan.model.record.model)
    return parity_record(published.name, agreement)


def _remedies(plan: Plan, fitted: WhiteningMap | None) -> list[str]:
    """Return which choices of an export may let it pass the gate, of those that it has."""
    if fitted is None and plan.recipe.graph.precision == "fp32":
        return []
    others = ["other layers"] if len(plan.model.layers) > 1 else []
    pooled = ["mean pooling"] if plan.pooling != "mean" and not plan.keeps_modules else []
    return [*pooled, *others, *(["a smaller --dim", "--whitening none"] if fitted is not None else [])]


def _named(plan: Plan) -> str:
    layers = ", ".join(map(str, plan.layers))
    return f"this {plan.model.record.model_type} network, layers {layers} with {plan.pooling} pooling,"
