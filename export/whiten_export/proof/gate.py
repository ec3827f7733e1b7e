"""Check a bundle at the parity gate: open it as written, and compare it with its reference, case by case."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_export.proof.reference import Composition, Float64Array, Head, Reference, text_alone
from whiten_runtime.bundle.manifest import Precision
from whiten_runtime.bundle.parity import (
    GATES,
    Agreement,
    Probes,
    alone_and_batched,
    compare,
    compute_long,
    expected_long,
)
from whiten_runtime.errors import NoVectorError, ParityError, RunError, WhitenError, one_line
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.loading import load_bundle
from whiten_runtime.inference.options import EncodeOptions, with_prompt
from whiten_runtime.ort.process import map_in_threads
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter

NO_VECTORS = np.zeros((0, 0))

_SAME = 1e-6
"""Largest difference of two vectors' coordinates, as a share of the largest one, at which they count as one."""


@dataclass(frozen=True)
class Case:
    """Texts that a bundle embeds in one call: their token ids, and their vectors by the reference.

    A case without texts is a batch of token ids, padded as it is.
    """

    ids: Sequence[Sequence[int]]  # token ids of each text, special tokens and prompt included, truncated
    left_out: int = 0  # number of tokens at the beginning of each text that are left out of the pooling
    expected: Float64Array = field(default_factory=lambda: NO_VECTORS)  # vectors before whitening, [n, d]
    texts: tuple[str, ...] = ()  # the texts, without prompt
    prompt: str = ""  # prompt that is put before each text, or around it
    long: bool = False  # whether these are the two longest texts, of which `compute_long` says how they are compared


@dataclass(frozen=True)
class PublishedVectors:
    """Vectors that the program computed for which a model was published."""

    name: str  # name and version of the program
    vectors: tuple[Float64Array, ...]  # float64 [n, k] for each case but the long ones
    longest: Sequence[Sequence[int]] | None = None  # token ids that it reads of the `longest_texts`, where it tells


def longest_texts(cases: Sequence[Case]) -> list[tuple[str, Sequence[int]]]:
    """Return the texts that are cut, or nearly so, with their token ids: the last probes, and the long texts."""
    last = ((case.texts[-2:], case.ids[-2:]) for case in cases if case is cases[0] or case.long)
    return [pair for texts, ids in last for pair in zip(texts, ids, strict=False)]


@dataclass(frozen=True)
class Definition:
    """Computes the vectors before whitening that a bundle has to give: the reference, and what follows it."""

    reference: Reference  # reference of the network
    composition: Composition  # how hidden states become a vector
    hidden_size: int  # size of a hidden state, d

    def unwhitened(self, ids: Sequence[int], left_out: int = 0) -> Float64Array:
        """Return the vector of a text before whitening, [1, k].

        A text without a token has the zero vector after pooling, by definition: the output of a network without input
        is arbitrary.
        """
        if not ids:
            zeros = np.zeros((len(self.composition.layers), 1, self.composition.pooled_width(self.hidden_size)))
            return self.composition(zeros)
        return self.composition(self.reference.pooled(*text_alone(ids, left_out)))


@dataclass(frozen=True)
class Expected:
    """Vectors of a reference, so that the reference need not stay in memory."""

    reference: str  # name of the reference
    cases: Sequence[Case]  # what is compared; the first case are the probes, which a bundle stores
    head: Head = field(default_factory=lambda: Head(None, False))  # whitening and normalisation
    max_tokens: int | msgspec.UnsetType = msgspec.UNSET  # number of tokens of the longest text, where it is known

    @property
    def probes(self) -> Probes:
        """Return the probes with their vectors, as a bundle stores them."""
        first, *others = (
            Probes(case.texts, self.head(case.expected), case.expected)
            for case in self.cases
            if case is self.cases[0] or case.long
        )
        return dataclasses.replace(first, long=others[0] if others else None)


def check_tokens(ours: list[list[int]], theirs: list[list[int]], texts: Sequence[str]) -> None:
    """Check that the bundle's tokenizer returns the same ids as the checkpoint's."""
    for text, got, want in zip(texts, ours, theirs, strict=True):
        if got != want:
            first = next((i for i, pair in enumerate(zip(got, want, strict=False)) if pair[0] != pair[1]), len(want))
            raise ParityError(
                f"the bundle's tokenizer gives other ids than the checkpoint's for {text[:60]!r}: from token "
                f"{first} on, {got[first : first + 6]} instead of {want[first : first + 6]}; no bundle was written"
            )


def compute_expected(definition: Definition, cases: Sequence[Case], report: Reporter) -> Expected:
    """Compute the vectors before whitening of each text of each case, alone and without padding.

    Equal texts are computed once, the longest first.
    """
    rows = dict.fromkeys((tuple(ids), case.left_out) for case in cases for ids in case.ids)
    known = _unwhitened(definition, sorted(rows, key=lambda row: -len(row[0])), report)
    definition.reference.close()
    computed = [
        dataclasses.replace(case, expected=np.concatenate([known[tuple(ids), case.left_out] for ids in case.ids]))
        for case in cases
    ]
    _check_different(computed[0].expected, definition.reference.name)
    longest = max(len(ids) for case in cases for ids in case.ids)
    return Expected(definition.reference.name, computed, max_tokens=longest)


def _check_different(vectors: Float64Array, name: str) -> None:
    """Check that a reference tells texts apart; a table of words that knows none of them gives zeros."""
    largest = np.abs(vectors).max()
    if largest and np.abs(vectors - vectors[0]).max() <= _SAME * largest:
        raise ParityError(
            f"{name} gives one vector for all {len(vectors)} probe texts, though they are different: the weights or "
            "the tokenizer are not the model's, or the pooling takes a token that never changes, as cls of a decoder "
            "or of layer 0; no bundle was written"
        )


_Row = tuple[tuple[int, ...], int]
"""Token ids of a text, and the number of those at its beginning that are left out of the pooling."""


def _compute(definition: Definition, row: _Row) -> Float64Array:
    """Return the vector of a row before whitening."""
    try:
        return definition.unwhitened(*row)
    except MemoryError:
        raise
    except Exception as error:  # of a network's own code, of onnxruntime, or of PyTorch without memory
        if isinstance(error, WhitenError) and not isinstance(error, RunError):
            raise
        raise ParityError(
            f"{definition.reference.name} fails on a text of {len(row[0])} tokens ({type(error).__name__}: "
            f"{one_line(error)}); pass a smaller --max-length; no bundle was written"
        ) from error


def _unwhitened(definition: Definition, rows: Sequence[_Row], report: Reporter) -> dict[_Row, Float64Array]:
    """Return the vector of each row before whitening."""
    compute = partial(_compute, definition)
    vector_of: dict[_Row, Float64Array] = {}
    bar = report.bar("tokens", sum(len(ids) for ids, _ in rows))
    side_by_side = definition.reference.side_by_side()
    with bar as advance, side_by_side as workers:
        several = workers > 1
        vectors = map_in_threads(compute, rows, workers, "whiten-reference") if several else map(compute, rows)
        for row, vector in zip(rows, vectors, strict=True):
            vector_of[row] = vector
            advance(len(row[0]))
    return vector_of


def compare_published(cases: Sequence[Case], published: PublishedVectors, normalize: bool, model: str) -> Agreement:
    """Compare the reference's vectors with those of the program that a model was published for, before whitening."""
    for (_, ids), read in zip(longest_texts(cases), published.longest or (), strict=published.longest is not None):
        if list(ids) != list(read):
            raise ParityError(
                f"{published.name} reads {len(read)} tokens of a long text with {model}, and {len(ids)} by its files: "
                "name the number that you want with --max-length; no bundle was written"
            )
    agreements = []
    for case, theirs in zip((case for case in cases if not case.long), published.vectors, strict=True):
        got = Head(None, normalize)(case.expected)
        if got.shape != theirs.shape:
            raise ParityError(
                f"{published.name} gives {theirs.shape[1]} dimensions for {model}, its files say {got.shape[1]}; no "
                "bundle was written"
            )
        agreement = compare(got, theirs)
        if not GATES["fp32"].passes(agreement):
            prompt = f" with the prompt {case.prompt[:40]!r}" if case.prompt else ""
            raise ParityError(
                f"{published.name} gives other vectors for {model}{prompt} than its files say: {agreement}; wanted "
                f"{GATES['fp32']}; no bundle was written"
            )
        agreements.append((got, theirs))
    return compare(*(np.concatenate(part) for part in zip(*agreements, strict=True)))


def check_bundle(root: Path, expected: Expected, options: SessionOptions) -> tuple[Agreement, Agreement]:
    """Compare a bundle with all cases of a reference.

    Returns how far it agrees on all of them, and on the probes that are computed alone.
    """
    bundle, embedder = load_bundle(root, options)
    with embedder:
        return compare_cases(embedder, EncodeOptions.of(bundle.manifest, prompt=""), expected)


def compare_cases(embedder: Embedder, whole: EncodeOptions, expected: Expected) -> tuple[Agreement, Agreement]:
    """Compare a graph with all cases of a reference, as `check_bundle` does; `whole` has no prompt."""
    whole = dataclasses.replace(whole, finite=False)  # the gate says so itself
    engine, (probes, *others) = embedder.engine, expected.cases

    def embed(texts: Sequence[str], prompt: str = whole.prompt) -> NDArray[np.float32]:
        try:
            return embedder.embed(texts, dataclasses.replace(whole, prompt=prompt))
        except NoVectorError as error:
            raise _bundle_failure(embedder, with_prompt(prompt, [texts[error.index]])[0], error) from None

    def compute(case: Case) -> NDArray[np.float32]:
        if case.long:
            items, long = (_cut(embedder, texts) for texts in (probes.texts, case.texts))
            return compute_long(partial(engine.run_batch, outputs=whole.outputs), items, long)
        if case.texts:
            return embed(case.texts, case.prompt)
        return engine.run_feed(engine.feed(case.ids, case.left_out), whole.outputs)

    alone, batched = alone_and_batched(embed, probes.texts)
    vectors = [compute(case) for case in others]
    want = [
        expected_long(expected.probes) if case.long else expected.head(case.expected)
        for case in (probes, *expected.cases)
    ]
    return compare(np.concatenate([alone, batched, *vectors]), np.concatenate(want)), compare(alone, want[0])


def _cut(embedder: Embedder, texts: Sequence[str]) -> list[list[int]]:
    return [embedder.tokenizer.cut(row) for row in embedder.tokenizer.tokenize(texts)]


def _bundle_failure(embedder: Embedder, text: str, error: NoVectorError) -> ParityError:
    """Return the error of a bundle on which onnxruntime fails for a text."""
    length = len(embedder.tokenizer.cut(embedder.tokenizer.tokenize([text])[0]))
    return ParityError(
        f"a text of {length} tokens {error.failures[error.index]}: {text[:60]!r}; pass a smaller --max-length; no "
        "bundle was written"
    )


def failure(
    expected: Expected, agreement: Agreement, alone: Agreement, precision: Precision, what: str, remedies: Sequence[str]
) -> ParityError:
    """Return the error of a bundle that failed its gate.

    `agreement` is of all cases, `alone` of the probes that are computed alone. `what` describes the network, its layers
    and pooling; `remedies` are what may help, such as "mean pooling".
    """
    gate = GATES[precision]
    reason = f"the bundle of {what} differs from {expected.reference}: {agreement}; wanted {gate}"
    if not np.isfinite(expected.probes.embeddings).all():
        hint = "the reference's own vectors are not finite: check the model"
    elif gate.passes(alone):
        hint = "texts that are computed alone agree: the network's vectors depend on padding, so it is not supported"
    elif precision != "fp32":
        hint = f"{precision} costs these vectors too much: use {' or '.join(('--precision fp32', *remedies))}"
    elif remedies:
        hint = f"it may be rounding, which a whitening magnifies where texts differ: use {' or '.join(remedies)}"
    else:
        hint = "the network computes something else as a graph, and is not supported"
    return ParityError(f"{reason}; {hint}; no bundle was written")
