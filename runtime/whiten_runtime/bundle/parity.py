"""Compare vectors with a reference, and define the parity gate of each precision."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.manifest import ParityRecord, Precision


@dataclass(frozen=True)
class Agreement:
    """Holds how far vectors are from their reference, over `vectors` pairs.

    Attributes:
        vectors: number of pairs compared.
        min_cosine: cosine of the worst pair.
        mean_cosine: mean cosine of the pairs.
        max_difference: largest |difference| of any coordinate, divided by the norm of the reference vector.
        max_norm_error: largest |norm / norm of the reference vector - 1|.
        mean_norm_error: mean of |norm / norm of the reference vector - 1|.
    """

    vectors: int
    min_cosine: float
    mean_cosine: float
    max_difference: float
    max_norm_error: float
    mean_norm_error: float

    def __str__(self) -> str:
        return in_words(self)


def in_words(parity: Agreement | ParityRecord) -> str:
    """Describe an agreement in one line."""
    mean, worst = 1 - parity.mean_cosine, 1 - parity.min_cosine
    norm = "" if parity.max_norm_error is None else f", worst norm {parity.max_norm_error:.1e} off"
    return (
        f"cosine 1 - {mean:.1e} on average, 1 - {worst:.1e} at worst, "
        f"worst difference {parity.max_difference:.1e} of the norm{norm}, {parity.vectors} vectors"
    )


@dataclass(frozen=True)
class Gate:
    """Holds the bounds that an `Agreement` must satisfy; each bound is inclusive."""

    min_cosine: float
    mean_cosine: float
    max_difference: float
    max_norm_error: float = np.inf
    mean_norm_error: float = np.inf

    def passes(self, agreement: Agreement) -> bool:
        """Return whether every bound is satisfied; NaN satisfies none."""
        return (
            agreement.min_cosine >= self.min_cosine
            and agreement.mean_cosine >= self.mean_cosine
            and agreement.max_difference <= self.max_difference
            and agreement.max_norm_error <= self.max_norm_error
            and agreement.mean_norm_error <= self.mean_norm_error
        )

    def __str__(self) -> str:
        mean = "" if self.mean_cosine == self.min_cosine else f", {self.mean_cosine:g} on average"
        difference = "" if np.isinf(self.max_difference) else f", difference <= {self.max_difference:g} of the norm"
        average = "" if np.isinf(self.mean_norm_error) else f", {self.mean_norm_error:.0%} on average"
        norm = "" if np.isinf(self.max_norm_error) else f", norm within {self.max_norm_error:.0%}{average}"
        return f"cosine >= {self.min_cosine:g}{mean}{difference}{norm}"


GATES: dict[Precision | Literal["bf16"], Gate] = {
    "fp32": Gate(min_cosine=0.999999, mean_cosine=0.999999, max_difference=1e-4),
    "fp16": Gate(min_cosine=0.9999, mean_cosine=0.9999, max_difference=np.inf, max_norm_error=0.02),
    # bfloat16 has 8 bits of significand: 1 - 4e-5 on average and 1 - 1.1e-4 at worst on all-MiniLM-L6-v2.
    "bf16": Gate(min_cosine=0.999, mean_cosine=0.9997, max_difference=np.inf, max_norm_error=0.02),
    "int8": Gate(0.98, 0.99, max_difference=np.inf, max_norm_error=0.1, mean_norm_error=0.05),
}


def alone_and_batched(
    embed: Callable[[Any], NDArray[np.float32]], items: Sequence[Any] | NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embed items one by one, and again all together, as every parity check does.

    Args:
        embed: function that returns float32 [n, k] for n items.
        items: n texts, token ids or vectors.

    Returns:
        Both results, float32 [n, k].
    """
    return np.concatenate([embed(items[index : index + 1]) for index in range(len(items))]), embed(items)


def compare(vectors: ArrayLike, reference: ArrayLike) -> Agreement:
    """Compare vectors with their reference, row by row, in float64.

    If a reference vector has norm zero, only a zero vector agrees with it.

    Args:
        vectors: shape [n, k], n >= 1.
        reference: shape [n, k].

    Raises:
        ValueError: the shapes differ, or n is 0.
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
    )
