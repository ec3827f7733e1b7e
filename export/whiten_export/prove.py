"""Check what a model makes of texts before a graph is made, and compare the finished bundle with the reference."""

import dataclasses
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir
from tokenizers import Tokenizer

from whiten_export.bundle_files import with_model_card
from whiten_export.fit import affine
from whiten_export.graph.build import save_graph
from whiten_export.graph.poolings import POOLINGS
from whiten_export.proof.gate import (
    Case,
    Expected,
    check_bundle,
    check_tokens,
    compare_cases,
    compare_published,
    failure,
)
from whiten_export.proof.probe_texts import LONGEST_PROBE, TOKENIZER_TEXTS, long_texts, probe_texts, token_batches
from whiten_export.proof.reference import Composition, Float64Array, Head, text_alone
from whiten_export.sources.model import SENTENCE_VECTOR, TokenModel
from whiten_export.sources.open_model import authors_length
from whiten_export.work import UNWHITENED_GRAPH, Work, free_memory
from whiten_runtime.bundle.bundle import file_record, list_files
from whiten_runtime.bundle.manifest import MANIFEST_FILE, FileRecord, Manifest, ParityRecord, Pooling, pooling_modes
from whiten_runtime.bundle.parity import GATES, Agreement, compare, write_probes
from whiten_runtime.bundle.space import with_space
from whiten_runtime.errors import RunError, UsageError
from whiten_runtime.inference.options import TEXT, with_prompt
from whiten_runtime.ort.doctor import check_provider
from whiten_runtime.ort.session import SessionOptions, describe_providers, import_onnxruntime
from whiten_runtime.reporter import Reporter
from whiten_whitening.maps import WhiteningMap
from whiten_whitening.statistics import READ_SENTENCES, warn_of_unknown

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

_PROMPTED = 6
"""Number of texts that are compared with each prompt."""

_LONGEST_LOOKUP = 1 << 16
"""Maximum number of tokens at which the cut of a table of vectors is compared."""

_MOST_PROMPTS = 12
"""Number of prompts that are compared, the first ones; a prompt is text, and differs from others in nothing else."""


def versions(elsewhere: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the versions of the programs that take part in an export, as far as they are installed, or `elsewhere`."""
    versions_of = {"python": platform.python_version()}
    for name in _RECORDED:
        with suppress(PackageNotFoundError):
            versions_of[name] = (elsewhere or {}).get(name) or version(name)
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
    provider = describe_providers((options or SessionOptions()).providers)
    measured = dataclasses.asdict(agreement)
    measured.pop("norm_bias")  # the gate has bounded it
    return ParityRecord(reference=reference, provider=provider, max_tokens=max_tokens, **measured)


def reference_vectors(manifest: Manifest, work: Work) -> Expected:
    """Return the reference's vectors of the cases, before whitening."""
    return work.model.expected(manifest, proof_cases(manifest, work), work.report)


def proof_cases(manifest: Manifest, work: Work) -> list[Case]:
    """Return what a model's bundle has to embed as the reference does: probes, batches of odd shapes, prompts."""
    longest = min(manifest.max_seq_length, LONGEST_PROBE)
    texts = probe_texts(longest)
    prompts = dict(manifest.prompts)
    if not manifest.include_prompt:
        prompts |= {"whiten": _ANY_PROMPT}  # callers bring prompts of their own
    short = texts[:-1]  # the last is cut
    step = max(1, len(short) // (_PROMPTED - 1))
    some = tuple(dict.fromkeys((*short[::step][: _PROMPTED - 1], short[-1])))
    distinct = [prompt for prompt in dict.fromkeys(prompts.values()) if prompt][:_MOST_PROMPTS]
    batches = token_batches(longest, work.model.vocab_size, manifest.pad_token_id)
    cases = [
        _text_case(manifest, work, "", texts),
        *map(Case, batches),
        *(_text_case(manifest, work, prompt, some) for prompt in distinct),
    ]
    if most := manifest.max_characters:
        cases.append(_text_case(manifest, work, "", (probe_texts(most)[-1][:most],)))
    if not manifest.source.num_hidden_layers and longest < manifest.max_seq_length <= _LONGEST_LOOKUP:
        cases.append(_text_case(manifest, work, "", (probe_texts(manifest.max_seq_length)[-1],)))
    if manifest.source.num_hidden_layers and (longer := long_texts(manifest.max_seq_length)):
        cases.append(dataclasses.replace(_text_case(manifest, work, "", longer), long=True))
    return cases


def _text_case(manifest: Manifest, work: Work, prompt: str, texts: tuple[str, ...]) -> Case:
    tokenizer = work.tokenizer
    rows = tokenizer.tokenize(with_prompt(prompt, texts))
    ids = [work.model.tokenizer.plain(tokenizer.cut(row)) for row in rows]
    left_out = 0 if manifest.include_prompt else tokenizer.prompt_tokens(prompt)
    return Case(ids, left_out, texts=texts, prompt=prompt)


def check_unrounded(manifest: Manifest, graph: ir.Model, expected: Expected, work: Work) -> None:
    """Check a model's graph before its head at the gate of float32: that of a precision would let a fault of it pass.

    For a CPU, it is the graph that a whitening is fitted with; for CUDA, the one whose operators are fused.
    """
    path, on = work.folder / UNWHITENED_GRAPH, work.options
    if manifest.target == "cuda":
        path, on = path.parent / "fused" / path.name, _on_cuda(on, Reporter())
        save_graph(graph, path)
    with work.embedder(path, on) as embedder:
        agreement, alone = compare_cases(embedder, dataclasses.replace(embedder.options, prompt=""), expected)
    if not GATES["fp32"].passes(agreement):
        raise failure(expected, agreement, alone, "fp32", _named(manifest), [])


def prove(manifest: Manifest, fitted: WhiteningMap | None, expected: Expected, work: Work) -> Manifest:
    """Compare a model's bundle with the reference, and with the program that the model was published for.

    It sets the manifest's `published` and `versions`, and what `write_proof` sets.

    Raises:
        ParityError: they differ by more than the gate allows.
    """
    if manifest.precision == "fp32":
        work.report.stage(CHECKING)
    published = _compare_published(manifest, expected, work)
    free_memory()  # the other program's network
    manifest = msgspec.structs.replace(manifest, published=published, versions=versions(work.model.versions))
    on = _on_cuda(work.options, work.report) if manifest.target == "cuda" else work.options

    def check(manifest: Manifest, expected: Expected) -> ParityRecord:
        agreement, alone = check_bundle(work.folder, expected, on)
        if not GATES[manifest.precision].passes(agreement):
            remedies = _remedies(manifest, work.model)
            raise failure(expected, agreement, alone, manifest.precision, _named(manifest), remedies)
        return parity_record(expected.reference, agreement, on, expected.max_tokens)

    return write_proof(work.folder, manifest, fitted, expected, check)


def write_proof(
    folder: Path,
    manifest: Manifest,
    fitted: WhiteningMap | None,
    expected: Expected,
    check: Callable[[Manifest, Expected], ParityRecord],
    unchanged: Mapping[str, FileRecord] | None = None,
) -> Manifest:
    """Write the probes, the manifest and the card of a bundle, and check it as it is written.

    It sets the manifest's `files` and `space`, and last its `parity`.

    Args:
        folder: folder of the bundle.
        manifest: its manifest.
        fitted: its whitening; None for none.
        expected: vectors of the reference before whitening.
        check: compares the bundle with the reference's vectors, and raises ParityError if it differs.
        unchanged: records of files that are kept as they were.
    """
    expected = dataclasses.replace(expected, head=Head.of(affine(fitted), manifest.normalize))
    write_probes(folder, expected.probes)
    files = {name: file_record(folder / name) for name in list_files(folder)} | dict(unchanged or {})
    manifest = with_space(msgspec.structs.replace(manifest, files=files))
    (folder / MANIFEST_FILE).write_bytes(manifest.to_json())
    manifest = with_model_card(folder, msgspec.structs.replace(manifest, parity=check(manifest, expected)))
    (folder / MANIFEST_FILE).write_bytes(manifest.to_json())
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


def _compare_published(manifest: Manifest, expected: Expected, work: Work) -> ParityRecord | None:
    """Compare the reference with the program that the model was published for, if layers and modules are its own."""
    model = work.model
    if not model.is_authors(manifest.layers, manifest.pooling):
        return None
    length, most = manifest.max_seq_length, manifest.max_characters or None
    comparable = (_comparable(case, most) for case in expected.cases)
    texts = [case for case in comparable if case.texts]
    if any(TEXT in case.prompt for case in texts):
        return None  # templates are not sentence-transformers'
    published = model.published(texts, None if length == authors_length(model) else length)
    if published is None:
        return None
    agreement = compare_published(texts, published, model.draft.normalize, manifest.source.model)
    return parity_record(published.name, agreement)


def _comparable(case: Case, most: int | None) -> Case:
    """Return a case without texts that have no token, and without those that the authors' program cuts by letters."""
    rows = [row for row, text in enumerate(case.texts) if case.ids[row] and (most is None or len(text) <= most)]
    ids, texts = [case.ids[row] for row in rows], tuple(case.texts[row] for row in rows)
    return dataclasses.replace(case, ids=ids, texts=texts, expected=case.expected[rows])


def _remedies(manifest: Manifest, model: TokenModel) -> list[str]:
    """Return which choices of an export may let it pass the gate, of those that it has."""
    if manifest.whitening is None and manifest.precision == "fp32":
        return []
    others = ["other layers"] if len(model.layers) > 1 else []
    authors = model.is_authors(manifest.layers, manifest.pooling)
    pooled = ["mean pooling"] if manifest.pooling != "mean" and not authors else []
    return [*pooled, *others, *(["a smaller --dim", "--whitening none"] if manifest.whitening is not None else [])]


def _named(manifest: Manifest) -> str:
    layers = ", ".join(map(str, manifest.layers))
    return f"this {manifest.source.model_type} network, layers {layers} with {manifest.pooling} pooling,"


_LONGEST_TEXT = 1 << 16
"""Maximum number of words of the text on which truncation is compared."""


def check_texts(manifest: Manifest, work: Work, overrides: bool) -> None:
    """Compare the tokenizer with the model's own, and check its prompts and its graph's own vectors.

    `overrides` says whether the caller names a pooling, or other layers than the last.
    """
    compare_tokenizers(manifest, work)
    check_prompts(manifest, work)
    check_own_vectors(manifest, work, overrides)


def compare_tokenizers(manifest: Manifest, work: Work) -> None:
    """Compare the bundle's tokenizer with the checkpoint's own, on texts with and without prompts."""
    tokenizer, theirs, length = work.tokenizer, work.model.tokenizer, manifest.max_seq_length
    sentences = list(islice(work.corpus, READ_SENTENCES))
    texts = [*probe_texts(min(length, _LONGEST_TEXT)), *TOKENIZER_TEXTS, *sentences]
    for prompt in dict.fromkeys(manifest.prompts.values()):
        texts += with_prompt(prompt, TOKENIZER_TEXTS) if prompt else []
    ours = [theirs.plain(tokenizer.cut(row)) for row in tokenizer.tokenize(texts)]
    of = "the corpus" if work.job is not None else "English"
    warn_of_unknown(sentences, of, Tokenizer.from_str(theirs.json), work.report)
    assert theirs.own_ids is not None
    own = theirs.own_ids(texts, length)
    work.model.tokenizer = replace(theirs, own_ids=None)
    compared = [index for index, ids in enumerate(own) if max(ids, default=0) < work.model.vocab_size]
    check_tokens([ours[i] for i in compared], [own[i] for i in compared], [texts[i] for i in compared])


def check_prompts(manifest: Manifest, work: Work) -> None:
    """Warn of prompts after which nothing of a text is left, so that all texts get one vector.

    Raises:
        UsageError: the pooling leaves the prompt out, and has no vector of what is left.
    """
    tokenizer = work.tokenizer
    assert manifest.pooling is not None
    for name, prompt in manifest.prompts.items():
        rows = {tuple(tokenizer.cut(row)) for row in tokenizer.tokenize(with_prompt(prompt, probe_texts(1)))}
        if len(rows) > 1:
            continue
        fills = (
            f"prompt '{name}' has {len(tokenizer.tokenize([prompt])[0])} tokens, a text may have "
            f"{manifest.max_seq_length}: nothing of a text would be left"
        )
        undefined = [mode for mode in pooling_modes(manifest.pooling) if POOLINGS[mode].needs_token]
        if undefined and not manifest.include_prompt:
            raise UsageError(
                f"{fills}, and pooling {undefined[0]} has no vector of no tokens; pass a --max-length that fits, or "
                "take the prompt out of config_sentence_transformers.json"
            )
        work.report.warn(f"{fills}, so all texts get the same vector with it")


def check_own_vectors(manifest: Manifest, work: Work, overrides: bool) -> None:
    """Check that a graph's own sentence vectors have the directions of the pooled states of its last layer.

    The modules of sentence-transformers beside the graph say whether they are normalised. Nothing is compared if the
    caller names a pooling or other layers: then other vectors are asked for.

    Raises:
        UsageError: the graph's own vectors are others.
    """
    source, pooling = work.model, manifest.pooling
    top = (manifest.source.num_hidden_layers,)
    for output in source.own_outputs:
        if overrides or not SENTENCE_VECTOR.search(output) or not set(top) <= set(source.layers):
            work.report.stage(f"the graph's own output {output} is not used: its token states are pooled ({pooling})")
        else:
            with suppress(RunError):  # of a length that the graph does not take: the gate names it
                _check_own_vectors(manifest, output, _probe_rows(manifest, work), work)


def _probe_rows(manifest: Manifest, work: Work) -> list[list[int]]:
    """Return the token ids of the probes, without texts that have none."""
    rows = work.tokenizer.tokenize(probe_texts(min(manifest.max_seq_length, LONGEST_PROBE)))
    return [ids for row in rows if (ids := work.model.tokenizer.plain(work.tokenizer.cut(row)))]


def _check_own_vectors(manifest: Manifest, output: str, rows: Sequence[Sequence[int]], work: Work) -> None:
    source, pooling = work.model, manifest.pooling
    assert pooling is not None
    theirs, ours = source.own_vectors(output, rows), _pooled(manifest, pooling, rows, source)
    finite = np.isfinite(theirs).all()
    if finite and _equal(ours, theirs):
        return
    if not finite:
        difference = "NaN or infinite for some texts"
    elif theirs.shape != ours.shape:
        difference = f"{theirs.shape[1]} numbers, not {ours.shape[1]}"
    else:
        difference = f"cosine {compare(_unit(ours), _unit(theirs)).min_cosine:.3f} at worst"
    raise UsageError(
        f"'{source.checkpoint.model}': the graph's own output {output} is another vector than {pooling} pooling of its "
        f"token states gives ({difference}); --pooling NAME, {pooling} too, takes the pooled token states all the same"
    )


def _pooled(manifest: Manifest, pooling: Pooling, rows: Sequence[Sequence[int]], source: TokenModel) -> Float64Array:
    """Return the vectors that the model's authors, by its files, make of the last layer with a pooling."""
    if source.is_authors(manifest.layers, pooling) and pooling == manifest.pooling:
        composition = source.composition(manifest)
    else:
        composition = Composition((manifest.source.num_hidden_layers,), pooling)
    reference = source.reference(composition.layers, pooling)
    return np.concatenate([composition(reference.pooled(*text_alone(row))) for row in rows])


def _equal(ours: Float64Array, theirs: Float64Array) -> bool:
    """Return whether vectors have the same directions, within the bounds of the gate."""
    return ours.shape == theirs.shape and GATES["fp32"].passes(compare(_unit(ours), _unit(theirs)))


def _unit(vectors: Float64Array) -> Float64Array:
    return Head(None, True)(vectors)
