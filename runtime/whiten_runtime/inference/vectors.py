"""Normalise, compare, search and quantise vectors: float32 of any size, from the smallest denormal to the largest."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whiten_runtime.bundle.bundle import WHITENING_FILE, Bundle
from whiten_runtime.bundle.manifest import Similarity, VectorPrecision
from whiten_runtime.errors import (
    NOT_FINITE,
    BundleError,
    NoVectorError,
    TextError,
    UsageError,
    needing_package,
    one_line,
    one_of,
)

_NUMBERS_PER_BLOCK = 1 << 22
"""Numbers of the differences that a distance holds in memory at once."""

_SAFE_SQUARES = (1e-24, 1e36)
"""Squares of norms between which products of float32 neither overflow nor lose digits to denormal numbers."""


def numbers_of(name: str, values: ArrayLike) -> NDArray[np.float32]:
    """Return numbers of any type as float32, [n, k] or [k]."""
    try:
        numbers = np.asarray(values)
        kind = numbers.dtype.kind
        if kind in "SUc" or (kind == "O" and any(isinstance(one, str | bytes | complex) for one in numbers.flat)):
            raise TypeError("texts, or complex numbers")  # numpy reads 1_0 as 10, and drops imaginary parts
        with np.errstate(over="ignore"):  # a value that is too large becomes infinite, and is refused
            return numbers.astype(np.float32, copy=False)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # RuntimeError: a tensor that needs gradients
        raise TextError(f"{name} are not numbers in rows of equal length ({one_line(error)})") from None


def rows_of(name: str, vectors: ArrayLike) -> NDArray[np.float32]:
    """Return vectors as float32, [n, k] or [k]."""
    rows = numbers_of(name, vectors)
    check_no_codes(name, np.asarray(vectors))
    return rows


def check_no_codes(name: str, rows: NDArray[Any]) -> None:
    """Check that rows do not have the type of codes, whose numbers are steps of ranges, or signs."""
    if rows.dtype in (np.bool_, np.uint8, np.int8):
        raise UsageError(
            f"{name}: has dtype {rows.dtype}, as codes of precision int8, uint8, binary or ubinary; wanted vectors of "
            "precision float32: embed again, or convert numbers that are coordinates with astype('float32')"
        )


def check_finite(name: str, rows: NDArray[np.float32]) -> None:
    """Check that no row of [n, k] holds an infinite number or NaN."""
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise TextError(f"{name}[{int(finite.argmin())}] is not finite; leave it out")


def check_computed(vectors: NDArray[np.float32], name: str) -> None:
    """Check that no vector of a graph, [n, k], holds an infinite number or NaN."""
    if bad := rows_not_finite(vectors):
        raise NoVectorError(dict.fromkeys(bad, NOT_FINITE), name)


def rows_not_finite(vectors: NDArray[np.float32]) -> set[int]:
    """Return the indices of the rows of [n, k], contiguous, that hold an infinite number or NaN."""
    if math.isfinite(np.vdot(vectors, vectors)):  # half the time of isfinite; a sum of squares may overflow
        return set()
    return set(np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist())


def comparable(a: ArrayLike, b: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return two sets of vectors as float32 [n, k] and [m, k]; a single vector is a set of one."""
    first, second = (np.atleast_2d(rows) for rows in _with_width(rows_of("a", a), rows_of("b", b)))
    for name, rows in (("a", first), ("b", second)):
        if rows.ndim != 2:
            raise UsageError(f"{name} has shape {rows.shape}; wanted [n, k] or [k]")
        check_finite(name, rows)
    if first.shape[1] != second.shape[1]:
        raise UsageError(
            f"vectors of {first.shape[1]} and {second.shape[1]} dimensions cannot be compared; "
            "embed both with the same bundle and truncate_dim"
        )
    return first, second


def _with_width(*several: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Give an empty list, which says no number of coordinates, that of the others."""
    width = max(rows.shape[-1] if rows.ndim else 0 for rows in several)
    return [rows.reshape(0, width) if rows.shape == (0,) else rows for rows in several]


def norms(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the L2 norm of each row, float64 [n]: no square of a float32 number overflows or vanishes there."""
    return np.asarray(np.sqrt(np.einsum("nk,nk->n", vectors, vectors, dtype=np.float64)))


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Divide each row by its L2 norm; rows of zeros stay, and rows with an infinite number or NaN become NaN.

    No bit of a row depends on the other rows.
    """
    rows = np.ascontiguousarray(vectors)  # else the order of a sum depends on the number of rows
    with np.errstate(over="ignore"):
        squares = np.add.reduce(np.square(rows), axis=1)
    safe = (_SAFE_SQUARES[0] <= squares) & (squares <= _SAFE_SQUARES[1])
    squares[~safe] = 1
    quotients: NDArray[np.float32] = rows / np.sqrt(squares)[:, None]
    if not safe.all():
        quotients[~safe] = _unit_of_any_norm(rows[~safe])
    return quotients


def _unit_of_any_norm(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    rows = vectors.astype(np.float64)
    lengths: NDArray[np.float64] = np.sqrt(np.add.reduce(np.square(rows), axis=1, keepdims=True))
    lengths[lengths == 0] = 1
    lengths[np.isinf(lengths)] = np.nan
    return (rows / lengths).astype(np.float32)


def row_cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the cosine of each row with the same row of the other, both [n, k]: float32 [n], 0 for rows of zeros."""
    return np.asarray(np.einsum("nk,nk->n", unit(first), unit(second))).clip(-1, 1)


def row_similarities(
    first: NDArray[np.float32], second: NDArray[np.float32], similarity: Similarity
) -> NDArray[np.float32]:
    """Return the similarity of each row with the same row of the other, both [n, k]: float32 [n].

    Distances are negated, so that more is always nearer. A number that float32 cannot hold is infinite.
    """
    if similarity == "cosine":
        return row_cosines(first, second)
    with np.errstate(over="ignore", invalid="ignore"):
        if similarity == "dot":
            products: NDArray[np.float64] = np.einsum("nk,nk->n", first, second, dtype=np.float64)
            return products.astype(np.float32)
        step = max(1, _NUMBERS_PER_BLOCK // max(1, first.shape[1]))
        parts = [
            -_distances(first[start : start + step], second[start : start + step], similarity)
            for start in range(0, len(first), step)
        ]
        return np.concatenate([np.empty(0), *parts]).astype(np.float32)


def similarity_matrix(
    first: NDArray[np.float32], second: NDArray[np.float32], similarity: Similarity
) -> NDArray[np.float32]:
    """Return the similarity of every row with every other; distances are negated, so that more is always nearer."""
    if similarity == "cosine":
        cosines: NDArray[np.float32] = unit(first) @ unit(second).T
        return cosines.clip(-1, 1, out=cosines)
    with np.errstate(over="ignore", invalid="ignore"):
        if similarity == "dot":
            products: NDArray[np.float32] = first @ second.T
            return products
        step = max(1, _NUMBERS_PER_BLOCK // max(1, second.size))
        parts = [
            -_distances(first[start : start + step, None], second[None], similarity)
            for start in range(0, len(first), step)
        ]
        return np.concatenate([np.empty((0, len(second))), *parts]).astype(np.float32)


def _distances(first: NDArray[np.float32], second: NDArray[np.float32], similarity: Similarity) -> NDArray[np.float64]:
    order = 2 if similarity == "euclidean" else 1
    return np.asarray(np.linalg.norm(np.subtract(first, second, dtype=np.float64), ord=order, axis=-1))


_ROWS_PER_BLOCK = 512
"""Number of queries whose similarities are held in memory at once."""


@dataclass(frozen=True)
class Nearest:
    """The nearest rows of each query, the nearest first.

    Attributes:
        rows: numbers of the rows, from 0 on, int64 [n, k].
        cosines: their cosines, float32 [n, k].
    """

    rows: NDArray[np.int64]
    cosines: NDArray[np.float32]

    @classmethod
    def empty(cls, queries: int) -> "Nearest":
        """Return the nearest of no rows."""
        return cls(np.empty((queries, 0), np.int64), np.empty((queries, 0), np.float32))

    def add(
        self, queries: NDArray[np.float32], rows: NDArray[np.float32], start: int, top: int, cosine: bool = True
    ) -> "Nearest":
        """Return the nearest rows of those so far and of further ones; among equals the lower number comes first.

        They are compared by cosine, or else by dot product.
        """
        first, second = (unit(queries), unit(rows)) if cosine else (queries, rows)
        parts = [
            self._slice(begin)._merge(first[begin : begin + _ROWS_PER_BLOCK] @ second.T, start, top)
            for begin in range(0, len(first), _ROWS_PER_BLOCK)
        ]
        if not parts:
            return self
        return Nearest(np.concatenate([part.rows for part in parts]), np.concatenate([part.cosines for part in parts]))

    def _slice(self, begin: int) -> "Nearest":
        end = begin + _ROWS_PER_BLOCK
        return Nearest(self.rows[begin:end], self.cosines[begin:end])

    def _merge(self, similarities: NDArray[np.float32], start: int, top: int) -> "Nearest":
        numbers = np.broadcast_to(np.arange(start, start + similarities.shape[1]), similarities.shape)
        merged = Nearest(
            np.concatenate([self.rows, numbers], axis=1), np.concatenate([self.cosines, similarities], axis=1)
        )
        if top < merged.rows.shape[1]:
            merged = merged._taken(_largest(merged.cosines, top))
        return merged._taken(np.argsort(-merged.cosines, axis=1, kind="stable"))  # equals are in the order of rows

    def _taken(self, places: NDArray[np.intp]) -> "Nearest":
        """Return what is at places of each query, [n, k]."""
        return Nearest(np.take_along_axis(self.rows, places, axis=1), np.take_along_axis(self.cosines, places, axis=1))


def _largest(values: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Return the places, ascending, of the largest values of each row, [n, count]; among equals, of the first ones."""
    width = values.shape[1]
    border = np.partition(values, width - count, axis=1)[:, width - count, None]
    beyond, equal = values > border, values == border
    room = count - np.count_nonzero(beyond, axis=1, keepdims=True)
    return np.nonzero(beyond | (equal & (np.cumsum(equal, axis=1) <= room)))[1].reshape(len(values), count)


_STEPS = 255
_SIGN_BIT = 128
"""Difference of an unsigned byte and a signed one."""


@dataclass(frozen=True)
class Quantizer:
    """Quantises vectors; none of them depends on another."""

    # "int8" and "uint8" give k bytes a vector, "binary" (int8) and "ubinary" (uint8) k / 8, rounded up
    precision: VectorPrecision
    # lower and upper end of each coordinate's range, float32 [2, k], for int8 and uint8
    ranges: NDArray[np.float32] | None = None

    @classmethod
    def of(
        cls,
        precision: VectorPrecision,
        ranges: ArrayLike | None,
        width: int,
        stored: Callable[[], NDArray[np.float32]],
    ) -> "Quantizer | None":
        """Return what quantises vectors of `width` coordinates; None for float32."""
        one_of("precision", precision, get_args(VectorPrecision))
        if precision in ("int8", "uint8"):
            return cls(precision, stored() if ranges is None else _checked(ranges, width))
        if ranges is not None:
            raise UsageError(f"ranges are for precision int8 and uint8, not {precision}; leave them out")
        return None if precision == "float32" else cls(precision)

    def __call__(self, vectors: NDArray[np.float32]) -> NDArray[Any]:
        """Return vectors [n, k] as int8 or uint8, [n, k] or [n, k / 8] rounded up."""
        if not np.isfinite(vectors).all():
            raise TextError(f"a vector is not finite and has no {self.precision}; take float32 to see which one it is")
        signed = self.precision in ("int8", "binary")
        levels = np.packbits(vectors > 0, axis=-1) if self.ranges is None else _levels(vectors, self.ranges)
        return (levels ^ np.uint8(_SIGN_BIT)).view(np.int8) if signed else levels


def _levels(vectors: NDArray[np.float32], ranges: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the number of the step, 0 to 255, that each coordinate lies on; those outside are on the nearest one."""
    start, end = ranges
    with np.errstate(over="ignore"):
        steps = (end - start) / np.float32(_STEPS)
        steps[steps == 0] = 1
        return np.asarray(np.clip(np.floor((vectors - start) / steps), 0, _STEPS), np.uint8)


def _checked(ranges: ArrayLike, width: int) -> NDArray[np.float32]:
    """Return a caller's ranges as float32 [2, width]."""
    ends = numbers_of("ranges", ranges)
    if ends.shape != (2, width):
        raise UsageError(f"ranges have shape {list(ends.shape)}; wanted [2, {width}]: lower ends, then upper ends")
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = ends[1] - ends[0]
    bad = ~(np.isfinite(lengths) & (lengths >= 0))
    if bad.any():
        place = int(bad.argmax())
        raise UsageError(
            f"ranges[:, {place}] are {ends[0, place]} and {ends[1, place]}; wanted finite numbers, the lower first"
        )
    return ends


def as_tensors(vectors: NDArray[Any], whole: bool) -> Any:
    """Return vectors [n, k] as one tensor, or as a list of n tensors [k], on the CPU and of the same dtype."""
    with needing_package("torch"):
        import torch
    return torch.from_numpy(vectors) if whole else list(torch.from_numpy(vectors))


DEVIATIONS = 5.5
"""Standard deviations from the mean to either end of a range.

For normal numbers and 8 bits the mean square error is least at 4 (8.8e-5 of the variance), and for texts unlike the
corpus, whose coordinates have longer tails, at 6: all-MiniLM-L6-v2 (layers 1,6 and 0,1) on STS-B, not normalised, has
9.2e-4 and 1.2e-3 at 4, 1.6e-4 and 2.0e-4 at 6; normalised, 1.1e-4 and 1.3e-4 at 4, 1.9e-4 at 6. At 5.5, none of the
four is above 1.5 times its own least error.
"""

_ROWS = 64
"""Rows of a covariance that are read at a time."""


@dataclass(frozen=True)
class OutputMoments:
    """The moments of the corpus's finished vectors, before any division by their norms."""

    mean: NDArray[np.float64]  # float64 [k]
    variance: NDArray[np.float64]  # float64 [k]

    def ranges(self, width: int, normalized: bool) -> NDArray[np.float32]:
        """Return the lower and the upper end of each coordinate's range, float32 [2, width]."""
        mean, variance = self.mean[:width], self.variance[:width]
        reach = DEVIATIONS * np.sqrt(variance)
        ends = np.stack([mean - reach, mean + reach])
        norm = np.sqrt(np.sum(variance + np.square(mean)))
        return (ends / norm if normalized and norm > 0 else ends).astype(np.float32)


def read_moments(bundle: Bundle) -> OutputMoments | None:
    """Return the moments of a bundle's vectors over its corpus; None if it stores none.

    They follow from those before whitening, which the bundle stores with its map y = (x - mean) W: the mean of y is
    (corpus_mean - mean) W, and its covariance is Wᵀ Σ W. Whoever opens a bundle checks its files once more at the end,
    as these are read by path: a few rows of Σ at a time take 4 MB less memory than the whole file.
    """
    path = bundle.path / WHITENING_FILE
    if WHITENING_FILE not in bundle.manifest.files:
        return None
    from safetensors import SafetensorError, safe_open  # takes a moment, which a bundle without a whitening spares

    try:
        with bundle.opened(WHITENING_FILE), safe_open(path, "numpy") as arrays:
            if not {"mean", "W", "corpus_mean", "covariance"} <= set(arrays.keys()):
                return None
            mean, W, corpus_mean = (_float64(arrays.get_tensor(name)) for name in ("mean", "W", "corpus_mean"))
            covariance, variance = arrays.get_slice("covariance"), np.zeros(W.shape[1])
            for start in range(0, len(W), _ROWS):
                rows = slice(start, min(start + _ROWS, len(W)))
                variance += np.einsum("dk,dk->k", W[rows], _float64(covariance[rows]) @ W)
        moments = OutputMoments((corpus_mean - mean) @ W, variance.clip(0))
    except BundleError:
        raise
    except (OSError, SafetensorError, ValueError, LookupError, TypeError) as error:
        raise BundleError(f"{path}: is damaged ({error}); copy the bundle again") from None
    wanted = (bundle.manifest.dimension,)
    if moments.mean.shape != wanted or not np.isfinite([moments.mean, moments.variance]).all():
        raise BundleError(f"{path}: holds no moments of {wanted[0]} coordinates; copy the bundle again")
    return moments


def _float64(array: Any) -> NDArray[np.float64]:
    return np.asarray(array, np.float64)
