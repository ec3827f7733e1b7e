"""Check, before a graph is made, what a model makes of texts: its tokens, its prompts, its own sentence vectors."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import numpy as np

from whiten_export.graph.poolings import POOLINGS
from whiten_export.pipeline.work import Work
from whiten_export.proof.gate import check_tokens
from whiten_export.proof.probe_texts import LONGEST_PROBE, TOKENIZER_TEXTS, probe_texts
from whiten_export.proof.reference import Composition, Float64Array, Head, text_alone
from whiten_export.sources.describe.tokenizers import count_unknown
from whiten_export.sources.model import SENTENCE_VECTOR, TokenModel
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.parity import GATES, compare
from whiten_runtime.bundle.records import Pooling, pooling_modes
from whiten_runtime.errors import RunError, UsageError
from whiten_runtime.inference.options import with_prompt

_UNIT = 1e-3
"""Largest distance of a norm from 1 that counts as 1."""

_UNDEFINED = frozenset({"cls", "max"})
"""Poolings that have no vector of no tokens: sentence-transformers takes those of the prompt, or minus infinity."""

_LONGEST_TEXT = 1 << 16
"""Maximum number of words of the text on which truncation is compared."""

_MOST_UNKNOWN = 0.5
"""Share of unknown tokens above which an export warns; all-MiniLM-L6-v2 has none in English."""

_TOKENIZER_SENTENCES = 512
"""Number of sentences of the corpus on which both tokenizers are compared, besides the probes."""


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
    sentences = list(islice(work.corpus, _TOKENIZER_SENTENCES))
    _warn_of_unknown(sentences, work)
    texts = [*probe_texts(min(length, _LONGEST_TEXT)), *TOKENIZER_TEXTS, *sentences]
    for prompt in dict.fromkeys(manifest.prompts.values()):
        texts += with_prompt(prompt, TOKENIZER_TEXTS) if prompt else []
    ours = [theirs.plain(tokenizer.cut(row)) for row in tokenizer.tokenize(texts)]
    assert theirs.own_ids is not None
    own = theirs.own_ids(texts, length)
    work.model.tokenizer = replace(theirs, own_ids=None)
    compared = [index for index, ids in enumerate(own) if max(ids, default=0) < work.model.vocab_size]
    check_tokens([ours[i] for i in compared], [own[i] for i in compared], [texts[i] for i in compared])


def _warn_of_unknown(sentences: Sequence[str], work: Work) -> None:
    """Warn if most tokens of sentences are unknown to the tokenizer, so that vectors say little of them."""
    unknown, count = count_unknown(work.model.tokenizer, work.tokenizer.tokenize(sentences))
    if unknown > _MOST_UNKNOWN * count:
        of = " of the corpus" if work.job is not None else " of English"
        work.report.warn(
            f"{unknown:,} of the {count:,} tokens of {len(sentences):,} sentences{of} are unknown to the model's "
            "tokenizer, and have one vector: check that it is the right tokenizer, with the right casing; if the model "
            "is for other texts than sentences, compare its vectors of those yourself"
        )


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
        if not manifest.include_prompt and (undefined := _UNDEFINED.intersection(pooling_modes(manifest.pooling))):
            raise UsageError(
                f"{fills}, and pooling {min(undefined)} has no vector of no tokens; pass a --max-length that fits, or "
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
                _check(manifest, output, _rows(manifest, work), work)


def _rows(manifest: Manifest, work: Work) -> list[list[int]]:
    """Return the token ids of the probes, without texts that have none."""
    rows = work.tokenizer.tokenize(probe_texts(min(manifest.max_seq_length, LONGEST_PROBE)))
    return [ids for row in rows if (ids := work.model.tokenizer.plain(work.tokenizer.cut(row)))]


def _check(manifest: Manifest, output: str, rows: Sequence[Sequence[int]], work: Work) -> None:
    source, pooling = work.model, manifest.pooling
    assert pooling is not None
    theirs = source.own_vectors(output, rows)
    subject = f"'{source.checkpoint.model}': the graph's own output {output}"
    keep = f"--pooling {pooling} takes the pooled token states all the same"
    if not np.isfinite(theirs).all():
        raise UsageError(f"{subject} is NaN or infinite for some texts; {keep}")
    ours = _pooled(manifest, pooling, rows, source)
    if _equal(ours, theirs):
        return
    if theirs.shape != ours.shape:
        raise UsageError(
            f"{subject} has {theirs.shape[1]} numbers, but {pooling} pooling of its token states gives "
            f"{ours.shape[1]}, so its last steps would be left out; export it with its token states alone and the "
            f"modules of sentence-transformers beside it; {keep}"
        )
    others = (mode for mode, row in POOLINGS.items() if row.weights is not None and mode != pooling)
    equals = (mode for mode in others if _equal(_pooled(manifest, mode, rows, source), theirs))
    if (equal := next(equals, None)) is not None:
        unit = np.abs(np.linalg.norm(theirs, axis=1) - 1).max() < _UNIT
        way = f"--pooling {equal} --whitening none{' --normalize' if unit else ''}"
        raise UsageError(f"{subject} is {equal} pooling of its token states: pass {way}; {keep}")
    worst = compare(_unit(ours), _unit(theirs)).min_cosine
    pooled = f"{pooling} pooling of its token states gives"
    raise UsageError(f"{subject} is another vector than {pooled} (cosine {worst:.3f} at worst); {keep}")


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
