"""Find axes, rotate coordinates, round them to fixed levels, and pack the numbers of the levels into bytes.

The levels have the least squared error for a normal coordinate (Max, "Quantizing for minimum distortion", IRE
Transactions on Information Theory, 1960, table I, with more digits): each is the mean of its cell, each threshold lies
half-way between two levels. A rotation makes coordinates of any variances nearly normal and of one variance, so that
none needs more bits than another (RaBitQ, SIGMOD 2024).
"""

import hashlib
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.errors import UsageError
from whiten_whitening.maps import FLOAT32_ROUNDING, NULL_EIGENVALUE, StoredMap
from whiten_whitening.moments import Float64Array, spectrum

Bits = Literal[1, 2, 3, 4]
Bytes = NDArray[np.uint8]

_POSITIVE: dict[int, tuple[float, ...]] = {
    1: (0.7978845608028654,),
    2: (0.4527800346364921, 1.510417608499096),
    3: (0.24509417894422167, 0.7560052812058773, 1.3439092785049999, 2.1519457045369873),
    4: (
        *(0.1283950298511473, 0.38804829949029135, 0.6567591185324648, 0.942340456486963),
        *(1.2562311973471778, 1.6180463860218828, 2.0690172265313866, 2.7325895709951595),
    ),
}


def bits_of(size: int, axes: int) -> Bits:
    choices: tuple[tuple[Bits, float], ...] = ((4, 2 / 3), (3, 2 / 3), (2, 1 / 2))  # with the share of axes to keep
    return next((bits for bits, share in choices if 8 * size >= bits * share * axes), 1)


def unit_moments(stored: StoredMap) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return mean [k] and covariance [k, k] of a bundle's output y / |y|, and the covariance [d, k] of input and y.

    Moments of y / |y| are taken to be those of y / s, where s is the root mean square norm of y.
    """
    cross = stored.covariance @ stored.weight
    mean, covariance = stored(stored.corpus_mean), stored.weight.T @ cross
    norm = np.sqrt(np.trace(covariance) + mean @ mean)
    return mean / norm, covariance / norm**2, cross


def principal_axes(covariance: Float64Array, cross: Float64Array) -> Float64Array:
    """Return the axes along which unit vectors u vary, orthonormal [k, axes]; `cross` is about cov(x, u), [d, k].

    They are the eigenvectors of cov(u, x) cov(x, u), where x is u before the whitening: with pca and zca, those of
    cov(u). After a full whitening, whose cov(u) has no axes, they come in the order of the variance before it.
    """
    basis = spectrum(cross.T @ cross)[1]
    variances = np.einsum("ij,ij->j", basis, covariance @ basis)
    varying = variances > max(NULL_EIGENVALUE * variances.max(), FLOAT32_ROUNDING**2)
    if not varying.any():
        raise UsageError("all vectors have the same direction, so there are no axes; give different vectors")
    return basis[:, varying]


_ROUNDS = 4
"""Changes of signs, each followed by a Hadamard transform. One round leaves the last coordinates of a number that is no
power of two as they are; five and six gave scores within 0.2 of four, as another draw of the signs does."""


def rotation(dims: int) -> Float64Array:
    """Return a fixed orthogonal matrix [dims, dims], with the same bits on every machine: it needs no BLAS.

    Rounds of random signs and a Hadamard transform, of the first coordinates and of the last ones in turn, as many as
    the largest power of two; the signs are bits of SHAKE-256.
    """
    size = 1 << dims.bit_length() - 1
    matrix = np.eye(dims)
    for number in range(_ROUNDS):
        digest = hashlib.shake_256(f"0 {dims} {number}".encode()).digest(-(-dims // 8))
        matrix *= 1.0 - 2.0 * np.unpackbits(np.frombuffer(digest, np.uint8))[:dims]
        part = slice(size) if number % 2 == 0 else slice(dims - size, dims)
        matrix[:, part] = _hadamard(matrix[:, part])
    return matrix


def _hadamard(rows: Float64Array) -> Float64Array:
    """Return the orthonormal Walsh-Hadamard transform of each row; the rows' length is a power of two."""
    n, size = rows.shape
    step = 1
    while step < size:
        pairs = rows.reshape(n, size // (2 * step), 2, step)
        rows = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(n, size)
        step *= 2
    return np.asarray(rows / np.sqrt(size))


def levels(bits: Bits) -> Float64Array:
    """Return the levels for a normal coordinate of variance 1, ascending, [2 ** bits]."""
    positive = np.asarray(_POSITIVE[bits])
    return np.concatenate([-positive[::-1], positive])


def nearest_levels(coordinates: Float64Array, bits: Bits) -> Bytes:
    """Return the number of the level nearest to each coordinate; half-way between two, the upper one."""
    own = levels(bits)
    numbers = np.zeros(coordinates.shape, np.uint8)
    for threshold in (own[:-1] + own[1:]) / 2:
        numbers += coordinates >= threshold
    return numbers


def code_levels(coordinates: Float64Array, bits: Bits) -> Bytes:
    """Return the numbers of the levels of coordinates [n, d], divided by their root mean square.

    Zeros have the least positive level everywhere, which no other row has: with 2 bits and more its cell ends below 1,
    and with 1 bit the least coordinate of a row of positive ones becomes negative.
    """
    norms = np.linalg.norm(coordinates, axis=1, keepdims=True)
    scaled = coordinates * (np.sqrt(coordinates.shape[1]) / np.where(norms > 0, norms, 1))
    numbers = nearest_levels(scaled, bits)
    taken = np.flatnonzero((numbers == _zero(bits)).all(axis=1) & (norms[:, 0] > 0))
    numbers[taken, scaled[taken].argmin(axis=1)] -= 1
    return numbers


def decode_levels(packed: Bytes, bits: Bits, dims: int) -> NDArray[np.float32]:
    """Return the coordinates that packed levels stand for, float32 [n, dims]."""
    rows = unpack(packed, bits, dims)
    rows[(rows == np.float32(levels(bits)[_zero(bits)])).all(axis=1)] = 0
    return rows


def _zero(bits: Bits) -> int:
    return int(1 << bits - 1)


def pack(numbers: Bytes, bits: Bits, size: int) -> Bytes:
    """Pack numbers of `bits` bits, [n, d], into bytes, [n, size], the first in the highest bits; the rest is 0."""
    n, dims = numbers.shape
    flat = np.zeros((n, 8 * size), np.uint8)
    flat[:, : bits * dims] = (numbers[:, :, None] >> _shifts(bits) & np.uint8(1)).reshape(n, bits * dims)
    return np.packbits(flat, axis=1)


def unpack(packed: Bytes, bits: Bits, dims: int) -> NDArray[np.float32]:
    """Return the levels whose numbers were packed, float32 [n, dims]."""
    flat = np.unpackbits(packed, axis=1, count=bits * dims).reshape(len(packed), dims, bits)
    numbers = flat[:, :, 0]
    for bit in range(1, bits):
        numbers = numbers << np.uint8(1) | flat[:, :, bit]
    table: NDArray[np.float32] = levels(bits).astype(np.float32)
    return table[numbers]


def _shifts(bits: Bits) -> Bytes:
    return np.arange(bits - 1, -1, -1, dtype=np.uint8)
