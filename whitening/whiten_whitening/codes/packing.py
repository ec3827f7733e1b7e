"""Pack numbers of levels into bytes, the first coordinate in the highest bits, and take them out again."""

import numpy as np
from numpy.typing import NDArray

from whiten_whitening.codes.levels import Bits, levels

Bytes = NDArray[np.uint8]

SCALE_BYTES = 4
"""Bytes of the scale that follows the coordinates of an 8-bit code: float32, little-endian."""


def code_bytes(dims: int, bits: Bits) -> int:
    """Return the number of bytes of one code."""
    return dims + SCALE_BYTES if bits == 8 else -(-dims * bits // 8)


def pack(numbers: Bytes, bits: Bits) -> Bytes:
    """Pack numbers of `bits` bits, [n, d], into bytes, [n, ceil(d * bits / 8)]; unused bits at the end are 0."""
    n, dims = numbers.shape
    each = 8 // bits
    size = code_bytes(dims, bits)
    padded = np.zeros((n, size * each), np.uint8)
    padded[:, :dims] = numbers
    return np.asarray(np.bitwise_or.reduce(padded.reshape(n, size, each) << _shifts(bits), axis=2), np.uint8)


def unpack(packed: Bytes, bits: Bits, dims: int) -> Bytes:
    """Return the numbers that were packed, [n, dims]."""
    numbers = packed[:, :, None] >> _shifts(bits) & np.uint8((1 << bits) - 1)
    return numbers.reshape(len(packed), numbers.shape[1] * numbers.shape[2])[:, :dims]


def level_table(bits: Bits) -> NDArray[np.float32]:
    """Return the levels that each byte stands for, [256, 8 / bits]."""
    numbers = unpack(np.arange(256, dtype=np.uint8)[:, None], bits, 8 // bits)
    return levels(bits).astype(np.float32)[numbers]


def sign_words(packed: Bytes, bits: Bits, dims: int) -> NDArray[np.uint64]:
    """Return the signs of coordinates as bits, 1 for those from 0 on: words of 64 signs, [ceil(dims / 64), n].

    The number of a level has its sign in its highest bit; in an 8-bit code, that bit is 1 for negative numbers.
    """
    n, words = len(packed), -(-dims // 64)
    signs = np.unpackbits(packed, axis=1)[:, ::bits][:, :dims]
    padded = np.zeros((n, words * 8), np.uint8)
    padded[:, : -(-dims // 8)] = np.packbits(1 - signs if bits == 8 else signs, axis=1)
    return np.ascontiguousarray(padded.view(np.uint64).T)


def int8_rows(vectors: NDArray[np.floating]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantise each row to int8 with a scale of its own, its largest absolute value / 127.

    Args:
        vectors: finite numbers, [n, d].

    Returns:
        int8 [n, d] and scales, float32 [n]; a row is about int8 * scale. The scale of a row of zeros is 0.
    """
    scales = (np.abs(vectors).max(axis=1, initial=0) / 127).astype(np.float32)
    divisors = np.where(scales > 0, scales, 1).astype(np.float64)
    return np.clip(np.rint(vectors / divisors[:, None]), -127, 127).astype(np.int8), scales


def pack_int8(vectors: NDArray[np.floating]) -> Bytes:
    """Return 8-bit codes: the int8 of each row, then its scale, [n, d + SCALE_BYTES]."""
    numbers, scales = int8_rows(vectors)
    return np.hstack([numbers.view(np.uint8), scales.astype("<f4")[:, None].view(np.uint8)])


def unpack_int8(packed: Bytes) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return int8 [n, d] and scales, float32 [n], of 8-bit codes."""
    scales = np.ascontiguousarray(packed[:, -SCALE_BYTES:]).view("<f4")[:, 0]
    return packed[:, :-SCALE_BYTES].view(np.int8), scales.astype(np.float32)


def _shifts(bits: Bits) -> Bytes:
    return np.arange(8 - bits, -1, -bits, dtype=np.uint8)
