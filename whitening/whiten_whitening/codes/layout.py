"""Read codes: what the bytes of a code stand for."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whiten_whitening.codes.levels import Bits
from whiten_whitening.codes.packing import SCALE_BYTES, Bytes, code_bytes, level_table, sign_words, unpack_int8


@dataclass(frozen=True, eq=False)
class Layout:
    """Describes the bytes of codes.

    Attributes:
        bits: bits of a coordinate.
        dims: number of coordinates.
        scale: factor of each coordinate, float32 [dims]; for 8 bits, ones.
    """

    bits: Bits
    dims: int
    scale: NDArray[np.float32]

    @property
    def bytes(self) -> int:
        """Return the number of bytes of a code."""
        return code_bytes(self.dims, self.bits)

    @property
    def padded(self) -> int:
        """Return the number of coordinates that the bytes have room for."""
        return self.dims if self.bits == 8 else self.bytes * 8 // self.bits

    def decode(self, codes: Bytes) -> NDArray[np.float32]:
        """Return the vectors that codes stand for, float32 [n, dims]."""
        if self.bits == 8:
            numbers, scales = unpack_int8(codes)
            return numbers * scales[:, None]
        return self.coordinates(codes)[:, : self.dims] * self.scale

    def coordinates(self, codes: Bytes) -> NDArray[np.float32]:
        """Return levels or int8 without any scale, float32 [n, padded]."""
        return BlockReader(self, len(codes)).read(codes)

    def weights(self) -> NDArray[np.float32]:
        """Return the factors of `coordinates`, float32 [padded]: the scales, then zeros."""
        found = np.zeros(self.padded, np.float32)
        found[: self.dims] = self.scale
        return found

    def signs(self, codes: Bytes) -> NDArray[np.uint64]:
        """Return the signs of the coordinates, words of 64, [ceil(dims / 64), n]."""
        return sign_words(codes[:, : self.dims] if self.bits == 8 else codes, self.bits, self.dims)


class BlockReader:
    """Reads the coordinates of codes block by block into one array: a new one for each block takes five times as long.

    Args:
        layout: layout of the codes.
        rows: largest number of codes of a block.
    """

    def __init__(self, layout: Layout, rows: int) -> None:
        self._bits = layout.bits
        self._found = np.empty((rows, layout.padded), np.float32)
        if layout.bits != 8:
            self._table = level_table(layout.bits)
            self._bytes = np.empty((rows, layout.bytes), np.intp)

    def read(self, codes: Bytes) -> NDArray[np.float32]:
        """Return levels or int8 without any scale, float32 [n, padded], which the next call overwrites."""
        found = self._found[: len(codes)]
        if self._bits == 8:
            found[...] = codes[:, :-SCALE_BYTES].view(np.int8)
        else:
            places = self._bytes[: len(codes)]
            places[...] = codes
            shape = (*places.shape, self._table.shape[1])
            np.take(self._table, places, axis=0, out=found.reshape(shape), mode="clip")
        return found


def blocks(layout: Layout, codes: Bytes, rows: int) -> Iterator[tuple[int, Bytes, NDArray[np.float32]]]:
    """Yield the first row of each block, its codes, and their coordinates, which the next block overwrites."""
    reader = BlockReader(layout, min(rows, len(codes)))
    for start in range(0, len(codes), rows):
        block = codes[start : start + rows]
        yield start, block, reader.read(block)
