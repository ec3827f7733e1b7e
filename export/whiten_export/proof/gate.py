"""Check a bundle at the parity gate: open it as written, and compare it with its reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whiten_export.proof.reference import Float64Array, Head, Reference
from whiten_runtime.bundle.parity import GATES, Agreement, alone_and_batched, compare
from whiten_runtime.bundle.probes import Probes
from whiten_runtime.errors import ParityError
from whiten_runtime.inference.embedder import EncodeOptions
from whiten_runtime.inference.loading import load_bundle
from whiten_runtime.ort.session import SessionOptions

Advance = Callable[[int], object]
Feed = dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Expected:
    """Holds the vectors of a reference, so that the reference need not stay in memory.

    Attributes:
        reference: name of the reference.
        probes: texts and their vectors.
        batches: padded batches of token ids.
        batch_vectors: finished vectors of each batch, [batch_size, k].
    """

    reference: str
    probes: Probes
    batches: Sequence[Feed]
    batch_vectors: Sequence[Float64Array]


def check_tokens(ours: list[list[int]], theirs: list[list[int]], texts: Sequence[str]) -> None:
    """Check that the bundle's tokenizer returns the same ids as the checkpoint's.

    Raises:
        ParityError: the ids differ; the message has the first such text.
    """
    for text, got, want in zip(texts, ours, theirs, strict=True):
        if got != want:
            first = next((i for i, pair in enumerate(zip(got, want, strict=False)) if pair[0] != pair[1]), len(want))
            raise ParityError(
                f"the bundle's tokenizer gives other ids than the checkpoint's for {text[:60]!r}: from token "
                f"{first} on, {got[first : first + 6]} instead of {want[first : first + 6]}; no bundle was written"
            )


def compute_expected(
    reference: Reference,
    head: Head,
    texts: tuple[str, ...],
    token_ids: list[list[int]],
    batches: Sequence[Feed],
    width: int,
    advance: Advance,
) -> Expected:
    """Compute the reference's vectors of each text, and of each row of a batch, alone and without padding.

    A text without a token has the zero vector, by definition: the output of a network without input is arbitrary.
    """

    def vectors(rows: Sequence[Sequence[int]]) -> Float64Array:
        found = []
        for ids in rows:
            row = np.asarray([ids], np.int64)
            found.append(reference.pooled(row, np.ones_like(row)).mean(axis=0) if ids else np.zeros((1, width)))
        advance(1)
        return np.concatenate(found)

    unwhitened = np.concatenate([vectors([ids]) for ids in token_ids])
    batch_vectors = [head(vectors(_rows(feed))) for feed in batches]
    return Expected(reference.name, Probes(texts, head(unwhitened), unwhitened), batches, batch_vectors)


def _rows(feed: Feed) -> list[list[int]]:
    pairs = zip(feed["input_ids"], feed["attention_mask"], strict=True)
    return [ids[mask.astype(bool)].tolist() for ids, mask in pairs]


def check_bundle(root: Path, expected: Expected, options: SessionOptions) -> Agreement:
    """Compare a bundle with the reference: its probes alone and batched, and batches of odd shapes.

    Args:
        root: the bundle's directory.
        expected: the reference's vectors.
        options: options with which the bundle's session is created.

    Returns:
        The agreement over all vectors.
    """
    bundle, embedder = load_bundle(root, options)
    with embedder:
        whole = EncodeOptions.of(bundle.manifest)
        got = [*alone_and_batched(lambda texts: embedder.embed(texts, whole), expected.probes.texts)]
        got.extend(embedder.engine.run_batch(feed) for feed in expected.batches)
    want = [expected.probes.embeddings, expected.probes.embeddings, *expected.batch_vectors]
    return compare(np.concatenate(got), np.concatenate(want))


def failure(agreement: Agreement, expected: Expected, own: Expected, precision: str, what: str) -> ParityError:
    """Return an error with the reason why the gate failed: a wrong graph, or too low a precision for these vectors.

    The reference in float32 decides between the two.

    Args:
        agreement: agreement of the bundle with the reference.
        expected: the reference's vectors.
        own: the reference's vectors, computed in float32.
        precision: precision of the bundle.
        what: description of the model, its layers and pooling, for the message.
    """
    gate = GATES["fp32" if precision == "fp32" else "int8"]
    own_agreement = compare(own.probes.embeddings, expected.probes.embeddings)
    if precision != "fp32":
        reason = (
            f"{precision} costs these vectors too much accuracy: {agreement}; use --precision fp32, a smaller --dim or "
            "other layers"
        )
    elif not np.isfinite(expected.probes.embeddings).all():
        reason = f"{expected.reference} gives vectors of {what} that are not finite; check the model"
    elif gate.passes(own_agreement):
        reason = f"the exported graph of {what} is not what {expected.reference} computes: {agreement}"
    else:
        reason = (
            f"{what} cannot be whitened in float32: texts differ so little there that whitening magnifies rounding; "
            f"use mean pooling, other layers or a smaller --dim. {own.reference} is as far from float64 "
            f"({own_agreement}) as the graph ({agreement})"
        )
    return ParityError(f"{reason}; no bundle was written")
