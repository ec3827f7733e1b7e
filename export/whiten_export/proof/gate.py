"""Check a bundle at the parity gate: open it as written, and compare it with its reference."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from whiten_export.proof.reference import Composition, Float64Array, Head, Reference, text_alone
from whiten_runtime.bundle.parity import (
    GATES,
    Agreement,
    Probes,
    alone_and_batched,
    compare,
    compute_long,
    expected_long,
)
from whiten_runtime.bundle.records import Precision
from whiten_runtime.errors import NoVectorError, ParityError, RunError, WhitenError, one_line
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.loading import load_bundle
from whiten_runtime.inference.options import EncodeOptions, with_prompt
from whiten_runtime.ort.session import SessionOptions
from whiten_runtime.reporter import Reporter

_PROMPTED = 6
"""Number of texts that are compared with each prompt."""

_MOST = 12
"""Number of prompts that are compared, the first ones; a prompt is text, and differs from others in nothing else."""

_SAME = 1e-6
"""Largest difference of two vectors' coordinates, as a share of the largest one, at which they count as one."""


@dataclass(frozen=True)
class Request:
    """Texts to embed with one prompt, and their token ids once they are known."""

    prompt: str  # prompt that is put before each text, or around it; an empty string for none
    texts: tuple[str, ...]  # the texts
    ids: Sequence[Sequence[int]] = ()  # token ids of each text with its prompt, truncated
    left_out: int = 0  # number of tokens of the prompt that are left out of the pooling


@dataclass(frozen=True)
class PublishedVectors:
    """Vectors that the program computed for which a model was published."""

    name: str  # name and version of the program
    vectors: tuple[Float64Array, ...]  # float64 [n, k] for each request


def prompted_requests(texts: Sequence[str], prompts: Mapping[str, str]) -> tuple[Request, ...]:
    """Return a few texts, short and long ones, with each prompt that is not empty."""
    step = max(1, len(texts) // (_PROMPTED - 1))
    some = tuple(dict.fromkeys((*texts[::step][: _PROMPTED - 1], texts[-1])))
    distinct = [prompt for prompt in dict.fromkeys(prompts.values()) if prompt]
    return tuple(Request(prompt, some) for prompt in distinct[:_MOST])


Feed = dict[str, NDArray[np.int64]]
Row = tuple[tuple[int, ...], int]
"""Token ids of a text, and the number of those at its beginning that are left out of the pooling."""


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
    probes: Probes  # texts and their vectors
    batches: Sequence[Feed] = ()  # padded batches of token ids
    batch_unwhitened: Sequence[Float64Array] = ()  # vectors of each batch before whitening, [batch_size, d]
    requests: Sequence[Request] = ()  # texts with prompts
    unwhitened: Sequence[Float64Array] = ()  # vectors of each request before whitening, [n, d]
    max_tokens: int | msgspec.UnsetType = msgspec.UNSET  # number of tokens of the longest text, where it is known
    head: Head = field(default_factory=lambda: Head(None, False))  # whitening and normalisation

    def finished_by(self, head: Head) -> "Expected":
        """Return the same vectors under another head."""
        long = self.probes.long
        if long is not None:
            long = dataclasses.replace(long, embeddings=head(long.unwhitened))
        probes = dataclasses.replace(self.probes, embeddings=head(self.probes.unwhitened), long=long)
        return dataclasses.replace(self, probes=probes, head=head)

    @property
    def finished(self) -> Float64Array:
        """Return all finished vectors, [n, k]: of the probes, of the batches, of the texts with prompts."""
        others = map(self.head, (*self.batch_unwhitened, *self.unwhitened))
        return np.concatenate([self.probes.embeddings, *others])


def check_tokens(ours: list[list[int]], theirs: list[list[int]], texts: Sequence[str]) -> None:
    """Check that the bundle's tokenizer returns the same ids as the checkpoint's."""
    for text, got, want in zip(texts, ours, theirs, strict=True):
        if got != want:
            first = next((i for i, pair in enumerate(zip(got, want, strict=False)) if pair[0] != pair[1]), len(want))
            raise ParityError(
                f"the bundle's tokenizer gives other ids than the checkpoint's for {text[:60]!r}: from token "
                f"{first} on, {got[first : first + 6]} instead of {want[first : first + 6]}; no bundle was written"
            )


def distinct_rows(requests: Sequence[Request], batches: Sequence[Feed]) -> list[Row]:
    """Return each row of token ids that the reference has to compute, once, with its left-out tokens; longest first."""
    rows = [_row(ids, request.left_out) for request in requests for ids in request.ids]
    rows += [_row(ids) for feed in batches for ids in _rows(feed)]
    return sorted(dict.fromkeys(rows), key=lambda row: -len(row[0]))


def compute_expected(
    definition: Definition, requests: Sequence[Request], batches: Sequence[Feed], report: Reporter
) -> Expected:
    """Compute the vectors before whitening of each text, and of each row of a batch, alone and without padding.

    The probes are the first request.
    """
    known = _unwhitened(definition, distinct_rows(requests, batches), report)
    probes, *prompted = requests

    def vectors(rows: Sequence[Sequence[int]], left_out: int = 0) -> Float64Array:
        return np.concatenate([known[_row(ids, left_out)] for ids in rows])

    unwhitened = vectors(probes.ids)
    _check_different(unwhitened, definition.reference.name)
    return Expected(
        reference=definition.reference.name,
        probes=Probes(probes.texts, unwhitened, unwhitened),
        batches=batches,
        batch_unwhitened=[vectors(_rows(feed)) for feed in batches],
        requests=prompted,
        unwhitened=[vectors(request.ids, request.left_out) for request in prompted],
    )


def _check_different(vectors: Float64Array, name: str) -> None:
    """Check that a reference tells texts apart; a table of words that knows none of them gives zeros."""
    largest = np.abs(vectors).max()
    if largest and np.abs(vectors - vectors[0]).max() <= _SAME * largest:
        raise ParityError(
            f"{name} gives one vector for all {len(vectors)} probe texts, though they are different: the weights or "
            "the tokenizer are not the model's; no bundle was written"
        )


def _row(ids: Sequence[int], left_out: int = 0) -> Row:
    return tuple(ids), left_out


def _unwhitened(definition: Definition, rows: Sequence[Row], report: Reporter) -> dict[Row, Float64Array]:
    """Return the vector of each row before whitening."""

    def compute(row: Row) -> Float64Array:
        try:
            return definition.unwhitened(*row)
        except MemoryError:
            raise
        except Exception as error:  # of a network's own code, or of onnxruntime
            if isinstance(error, WhitenError) and not isinstance(error, RunError):
                raise
            raise _reference_failure(definition, row, error) from error

    vector_of: dict[Row, Float64Array] = {}
    bar = report.bar("tokens", sum(len(ids) for ids, _ in rows))
    side_by_side = definition.reference.side_by_side()
    with bar as advance, side_by_side as workers, ThreadPoolExecutor(workers, "whiten-reference") as executor:
        vectors: Iterator[Float64Array] = map(compute, rows) if workers == 1 else executor.map(compute, rows)
        for row, vector in zip(rows, vectors, strict=True):
            vector_of[row] = vector
            advance(len(row[0]))
    return vector_of


def _reference_failure(definition: Definition, row: Row, error: Exception) -> WhitenError:
    """Return the error of a reference that fails on a text, and say which texts it computes."""
    ids, left_out = row

    def runs(length: int) -> bool:
        try:
            definition.unwhitened(ids[:length], min(left_out, length))
        except Exception:
            return False
        return True

    what = (
        f"{definition.reference.name} fails on a text of {len(ids)} tokens ({type(error).__name__}: {one_line(error)})"
    )
    if length := _longest(runs, len(ids)):
        return ParityError(f"{what}, but not on one of {length}: pass --max-length {length}; no bundle was written")
    return ParityError(f"{what}, and on shorter ones: the bundle cannot be compared with it, and was not written")


def _longest(runs: Callable[[int], bool], fails: int) -> int:
    """Return the largest number of tokens that runs, below one that fails; 0 if none does."""
    good = 0
    while fails - good > 1:
        middle = (good + fails) // 2
        good, fails = (middle, fails) if runs(middle) else (good, middle)
    return good


def compare_published(
    expected: Expected, published: PublishedVectors, requests: Sequence[Request], normalize: bool, model: str
) -> Agreement:
    """Compare the reference with the program that a model was published for, before whitening."""
    probes = expected.probes
    rows = {text: row for row, text in enumerate(probes.texts)}
    plain = probes.unwhitened[[rows[text] for text in requests[0].texts]]
    agreements = []
    for request, ours, theirs in zip(requests, [plain, *expected.unwhitened], published.vectors, strict=True):
        got = Head(None, normalize)(ours)
        if got.shape != theirs.shape:
            raise ParityError(
                f"{published.name} gives {theirs.shape[1]} dimensions for {model}, its files say {got.shape[1]}; no "
                "bundle was written"
            )
        agreement = compare(got, theirs)
        if not GATES["fp32"].passes(agreement):
            prompt = f" with the prompt {request.prompt[:40]!r}" if request.prompt else ""
            raise ParityError(
                f"{published.name} gives other vectors for {model}{prompt} than its files say: {agreement}; wanted "
                f"{GATES['fp32']}; no bundle was written"
            )
        agreements.append((got, theirs))
    return compare(*(np.concatenate(part) for part in zip(*agreements, strict=True)))


def _rows(feed: Feed) -> list[list[int]]:
    pairs = zip(feed["input_ids"], feed["attention_mask"], strict=True)
    return [ids[mask.astype(bool)].tolist() for ids, mask in pairs]


@dataclass(frozen=True)
class Outcome:
    """How far a bundle agrees with its reference."""

    agreement: Agreement  # of all texts, alone and in batches
    alone: Agreement  # of texts that are computed alone


def check_bundle(root: Path, expected: Expected, options: SessionOptions) -> Outcome:
    """Compare a bundle with the reference: its probes alone and batched, texts with prompts, batches of odd shapes."""
    bundle, embedder = load_bundle(root, options)
    with embedder:
        whole = EncodeOptions.of(bundle.manifest, prompt="")
        whole = dataclasses.replace(whole, finite=False)  # the gate says so itself

        def embed(texts: Sequence[str], prompt: str = whole.prompt) -> NDArray[np.float32]:
            try:
                return embedder.embed(texts, dataclasses.replace(whole, prompt=prompt))
            except NoVectorError as error:
                raise _bundle_failure(embedder, with_prompt(prompt, [texts[error.index]])[0], error) from None

        alone, batched = alone_and_batched(embed, expected.probes.texts)
        others = [embedder.engine.run_feed(feed) for feed in expected.batches]
        others += [embed(request.texts, request.prompt) for request in expected.requests]
        if expected.probes.long is not None:
            items, long = (_cut(embedder, texts) for texts in (expected.probes.texts, expected.probes.long.texts))
            others.append(compute_long(embedder.engine.run_batch, items, long))
    probes = expected.probes.embeddings
    want = np.concatenate([probes, expected.finished, expected_long(expected.probes)])
    agreement = compare(np.concatenate([alone, batched, *others]), want)
    return Outcome(agreement, compare(alone, probes))


def _cut(embedder: Embedder, texts: Sequence[str]) -> list[list[int]]:
    return [embedder.tokenizer.cut(row) for row in embedder.tokenizer.tokenize(texts)]


def _bundle_failure(embedder: Embedder, text: str, error: NoVectorError) -> ParityError:
    """Return the error of a bundle on which onnxruntime fails for a text, and say which texts run."""
    ids = embedder.tokenizer.cut(embedder.tokenizer.tokenize([text])[0])

    def runs(length: int) -> bool:
        try:
            embedder.engine.run_feed(embedder.engine.feed([ids[:length]]))
        except RunError:
            return False
        return True

    what = f"a text of {len(ids)} tokens {error.failures[error.index]}"
    if length := _longest(runs, len(ids)):
        return ParityError(f"{what}, but one of {length} has: pass --max-length {length}; no bundle was written")
    return ParityError(f"{what}: {text[:60]!r}; no bundle was written")


def failure(
    outcome: Outcome, expected: Expected, precision: Precision, what: str, remedies: Sequence[str]
) -> ParityError:
    """Return the error of a bundle that failed its gate.

    `what` describes the network, its layers and pooling; `remedies` are what may help, such as "mean pooling".
    """
    gate = GATES[precision]
    reason = f"the bundle of {what} differs from {expected.reference}: {outcome.agreement}; wanted {gate}"
    if not np.isfinite(expected.probes.embeddings).all():
        hint = "the reference's own vectors are not finite: check the model"
    elif gate.passes(outcome.alone):
        hint = "texts that are computed alone agree: the network's vectors depend on padding, so it is not supported"
    elif precision != "fp32":
        hint = f"{precision} costs these vectors too much: use {' or '.join(('--precision fp32', *remedies))}"
    elif remedies:
        hint = f"it may be rounding, which a whitening magnifies where texts differ: use {' or '.join(remedies)}"
    else:
        hint = "the network computes something else as a graph, and is not supported"
    return ParityError(f"{reason}; {hint}; no bundle was written")
