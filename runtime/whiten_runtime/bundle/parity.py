"""Compare vectors with a reference, define the parity gate of each precision, and read and write the probes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.bundle import PROBE_VECTORS_FILE, PROBES_FILE, Bundle
from whiten_runtime.bundle.manifest import Manifest, ParityRecord, Precision
from whiten_runtime.errors import BundleError, ParityError

_SHOWN = 0.005
"""Smallest share by which all norms are off that is worth a word."""


@dataclass(frozen=True)
class Agreement:
    """Measures how far vectors are from their reference, over `vectors` pairs.

    Attributes:
        vectors: number of pairs compared.
        min_cosine: cosine of the worst pair.
        mean_cosine: mean cosine of the pairs.
        max_difference: largest |difference| of any coordinate, divided by the norm of the reference vector.
        max_norm_error: largest |norm / norm of the reference vector - 1|.
        mean_norm_error: mean of |norm / norm of the reference vector - 1|.
        norm_bias: mean of norm / norm of the reference vector - 1, with its sign: rounding makes some vectors longer
            and others shorter, a wrong scale makes all of them so.
    """

    vectors: int
    min_cosine: float
    mean_cosine: float
    max_difference: float
    max_norm_error: float
    mean_norm_error: float
    norm_bias: float

    def __str__(self) -> str:
        scaled = "" if abs(self.norm_bias) < _SHOWN else f"{1 + self.norm_bias:.3f}"
        return in_words(self) + (f", norms {scaled} times as long on average" if scaled else "")


def in_words(parity: Agreement | ParityRecord) -> str:
    mean, worst = 1 - parity.mean_cosine, 1 - parity.min_cosine
    return (
        f"cosine 1 - {mean:.1e} on average, 1 - {worst:.1e} at worst, worst difference {parity.max_difference:.1e} of "
        f"the norm, worst norm {parity.max_norm_error:.1e} off, {parity.vectors} vectors"
    )


@dataclass(frozen=True)
class Gate:
    """Bounds that an `Agreement` must satisfy; each bound is inclusive."""

    min_cosine: float
    mean_cosine: float
    max_difference: float
    max_norm_error: float = np.inf
    mean_norm_error: float = np.inf
    max_norm_bias: float = np.inf

    def passes(self, agreement: Agreement) -> bool:
        """Return whether every bound is satisfied; NaN satisfies none."""
        return (
            agreement.min_cosine >= self.min_cosine
            and agreement.mean_cosine >= self.mean_cosine
            and agreement.max_difference <= self.max_difference
            and agreement.max_norm_error <= self.max_norm_error
            and agreement.mean_norm_error <= self.mean_norm_error
            and abs(agreement.norm_bias) <= self.max_norm_bias
        )

    def __str__(self) -> str:
        mean = "" if self.mean_cosine == self.min_cosine else f", {self.mean_cosine:g} on average"
        difference = "" if np.isinf(self.max_difference) else f", difference <= {self.max_difference:g} of the norm"
        average = "" if np.isinf(self.mean_norm_error) else f", {self.mean_norm_error:.0%} on average"
        norm = "" if np.isinf(self.max_norm_error) else f", norm within {self.max_norm_error:.0%}{average}"
        bias = "" if np.isinf(self.max_norm_bias) else f", {self.max_norm_bias:.0%} of all together"
        return f"cosine >= {self.min_cosine:g}{mean}{difference}{norm}{bias}"


GATES: dict[Precision, Gate] = {
    "fp32": Gate(min_cosine=0.999999, mean_cosine=0.999999, max_difference=1e-4),
    "fp16": Gate(min_cosine=0.9999, mean_cosine=0.9999, max_difference=np.inf, max_norm_error=0.02),
    "int8": Gate(0.98, 0.99, max_difference=np.inf, max_norm_error=0.1, mean_norm_error=0.05, max_norm_bias=0.02),
}


_OTHER_KERNELS = 1.25, 2e-5
"""Factor and term of what int8 may lose on average where it runs, over what it lost where it was exported.

Other kernels round float32 otherwise, which turns a few activations to the next level: on all-MiniLM-L6-v2 the mean
cosine of 512-bit and 256-bit kernels differs by 1e-6. Products that saturate lost 2.2 times as much.
"""


def gate_here(manifest: Manifest) -> Gate:
    """Return the bounds for the vectors of a bundle on the machine where it runs.

    Those of its precision, and of int8 besides a mean cosine near the one of the export: whether this machine's kernels
    multiply as the exporter's did.
    """
    gate = GATES[manifest.precision]
    if manifest.precision != "int8" or manifest.parity is None:
        return gate
    factor, term = _OTHER_KERNELS
    lost = factor * (1 - manifest.parity.mean_cosine) + term
    return replace(gate, mean_cosine=max(gate.mean_cosine, round(1 - lost, 6)))


@dataclass(frozen=True)
class Proof:
    """Says how near the vectors of a bundle's probes are to the reference's, and how near they have to be here."""

    agreement: Agreement
    gate: Gate
    reference: str  # program that computed the reference's vectors
    provider: str  # execution providers that computed the bundle's, with their options

    @property
    def passed(self) -> bool:
        return self.gate.passes(self.agreement)

    def check(self, bundle: object, advice: str = "") -> None:
        """Raise ParityError unless every bound is satisfied."""
        if not self.passed:
            raise ParityError(
                f"{bundle}: not what {self.reference} computed, on {self.provider}: {self.agreement}; wanted "
                f"{self.gate}{advice}"
            )


def alone_and_batched(
    embed: Callable[[Any], NDArray[np.float32]], items: Sequence[Any] | NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embed items one by one, and again all together, as every parity check does."""
    return np.concatenate([embed(items[index : index + 1]) for index in range(len(items))]), embed(items)


def compare(vectors: ArrayLike, reference: ArrayLike) -> Agreement:
    """Compare vectors with their reference, row by row, in float64.

    If a reference vector has norm zero, only a zero vector agrees with it.
    """
    got, want = np.asarray(vectors, np.float64), np.asarray(reference, np.float64)
    if got.shape != want.shape or got.ndim != 2 or not len(got):
        raise ValueError(f"vectors have shape {got.shape}, reference {want.shape}; wanted two equal [n, k], n >= 1")
    got_norm, want_norm = (np.linalg.norm(x, axis=1, keepdims=True) for x in (got, want))
    got_unit, want_unit = (
        got / np.where(got_norm > 0, got_norm, 1),
        want / np.where(want_norm > 0, want_norm, 1),
    )
    # 1 - |a - b|^2 / 2 keeps the digits that a dot product near 1 loses.
    cosine = 1 - np.square(got_unit - want_unit).sum(axis=1) / 2
    gap = np.abs(got - want).max(axis=1)
    norm = want_norm[:, 0]
    off = np.abs(got_norm[:, 0] - norm)
    norm_error = np.divide(off, norm, out=np.where(off == 0, 0.0, np.inf), where=norm > 0)
    difference = np.divide(gap, norm, out=np.where(gap == 0, 0.0, np.inf), where=norm > 0)
    return Agreement(
        vectors=len(got),
        min_cosine=float(cosine.min()),
        mean_cosine=float(cosine.mean()),
        max_difference=float(difference.max()),
        max_norm_error=float(norm_error.max()),
        mean_norm_error=float(norm_error.mean()),
        norm_bias=float(np.where(got_norm[:, 0] < norm, -norm_error, norm_error).mean()),
    )


@dataclass(frozen=True)
class Probes:
    texts: tuple[str, ...]  # n texts; empty in a bundle that whitens vectors
    embeddings: NDArray[np.float64]  # finished vectors, float64 [n, k]
    unwhitened: NDArray[np.float64]  # vectors before whitening and normalisation, float64 [n, d]
    long: "Probes | None" = None  # texts of the maximum length and of half of it; None if the others are as long


BESIDE = 7
"""Index of the probe that shares a batch with the shorter one of the long texts."""


def compute_long(
    run_batch: Callable[[list[Any]], NDArray[np.float32]], items: Sequence[Any], long: Sequence[Any]
) -> NDArray[np.float32]:
    """Compute the longest text alone, and the other long one in a batch with a short one: float32 [3, k]."""
    longest, half = long
    return np.concatenate([run_batch([longest]), run_batch([half, items[BESIDE]])])


def expected_long(probes: Probes) -> NDArray[np.float64]:
    """Return the reference's vectors for `compute_long`, float64 [3, k]; none of probes without long texts."""
    if probes.long is None:
        return probes.embeddings[:0]
    return np.concatenate([probes.long.embeddings, probes.embeddings[BESIDE : BESIDE + 1]])


class _ProbesFile(msgspec.Struct, omit_defaults=True):
    texts: tuple[str, ...]
    long_texts: tuple[str, ...] = ()


def write_probes(root: Path, probes: Probes) -> None:
    """Write `probes.json` and `probes.safetensors` into a bundle directory."""
    if probes.texts:
        texts = _ProbesFile(probes.texts, probes.long.texts if probes.long else ())
        content = msgspec.json.format(msgspec.json.encode(texts), indent=2)
        (root / PROBES_FILE).write_bytes(content + b"\n")
    from safetensors.numpy import save

    vectors = {"embeddings": probes.embeddings, "unwhitened": probes.unwhitened}
    if probes.long is not None:
        vectors |= {"long_embeddings": probes.long.embeddings, "long_unwhitened": probes.long.unwhitened}
    arrays = save({name: np.ascontiguousarray(array) for name, array in vectors.items()})
    (root / PROBE_VECTORS_FILE).write_bytes(arrays)


def read_probes(bundle: Bundle) -> Probes:
    from safetensors import SafetensorError  # an encoder that proves nothing needs neither
    from safetensors.numpy import load

    of_texts, manifest = bundle.manifest.input == "text", bundle.manifest
    for name in (PROBE_VECTORS_FILE, *([PROBES_FILE] if of_texts else [])):
        if name not in manifest.files:
            raise BundleError(f"{bundle.path}: has no {name}, so nothing can be proven; export the model again")
    try:
        texts = _ProbesFile(())
        if of_texts:
            texts = msgspec.json.decode(bundle.read(PROBES_FILE), type=_ProbesFile)
        vectors = load(bundle.read(PROBE_VECTORS_FILE))
        long = None
        if texts.long_texts:
            long = Probes(texts.long_texts, vectors["long_embeddings"], vectors["long_unwhitened"])
        probes = Probes(texts.texts, vectors["embeddings"], vectors["unwhitened"], long)
    except BundleError:
        raise
    except (OSError, ValueError, msgspec.DecodeError, RecursionError, SafetensorError, LookupError, TypeError) as error:
        raise BundleError(f"{bundle.path}: its probes are damaged ({error}); copy the bundle again") from None
    count = len(texts.texts) if of_texts else len(probes.unwhitened)
    for part, wanted in ((probes, max(1, count)), *([(long, 2)] if long is not None else [])):
        shapes = (part.embeddings.shape, part.unwhitened.shape)
        if shapes != ((wanted, manifest.dimension), (wanted, manifest.unwhitened_width)):
            raise BundleError(
                f"{bundle.path}: its probes are {len(part.texts)} texts and vectors of shapes {shapes}; export it again"
            )
    return probes
