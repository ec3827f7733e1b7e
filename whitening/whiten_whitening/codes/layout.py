"""Read codes: what the bytes of a code stand for."""

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
        if self.bits == 8:
            return codes[:, :-SCALE_BYTES].view(np.int8).astype(np.float32)
        return np.take(level_table(self.bits), codes, axis=0, mode="clip").reshape(len(codes), self.padded)

    def weights(self) -> NDArray[np.float32]:
        """Return the factors of `coordinates`, float32 [padded]: the scales, then zeros."""
        found = np.zeros(self.padded, np.float32)
        found[: self.dims] = self.scale
        return found

    def signs(self, codes: Bytes) -> NDArray[np.uint64]:
        """Return the signs of the coordinates, words of 64, [ceil(dims / 64), n]."""
        return sign_words(codes[:, : self.dims] if self.bits == 8 else codes, self.bits, self.dims)
