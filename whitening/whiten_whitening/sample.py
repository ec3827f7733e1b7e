"""A random sample of a stream of vectors, the same however the stream comes in windows."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SAMPLE_SIZE = 4096

Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class Sample:
    """The vectors of the smallest keys, at most `SAMPLE_SIZE`: a random sample, as keys are hashes.

    Attributes:
        keys: ascending, [m].
        vectors: float32 [m, d].
    """

    keys: Keys
    vectors: NDArray[np.float32]

    @classmethod
    def empty(cls, width: int) -> "Sample":
        """A sample of no vectors."""
        return cls(np.empty(0, np.uint64), np.empty((0, width), np.float32))

    def add(self, keys: Keys, vectors: NDArray[np.float32]) -> "Sample":
        """The sample of these vectors too."""
        if len(self.keys) == SAMPLE_SIZE:
            smaller = keys < self.keys[-1]
            keys, vectors = keys[smaller], vectors[smaller]
        if not len(keys):
            return self
        joined = np.concatenate([self.keys, keys])
        order = np.argsort(joined, kind="stable")[:SAMPLE_SIZE]
        return Sample(joined[order], np.concatenate([self.vectors, vectors])[order])


def text_keys(texts: Iterable[str]) -> Keys:
    """Keys of texts: 8 bytes of their hash."""
    digests = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def row_keys(start: int, count: int) -> Keys:
    """Keys of rows `start` to `start + count` of a table: SplitMix64 of their numbers (Steele et al., 2014)."""
    with np.errstate(over="ignore"):
        keys = (np.arange(start + 1, start + count + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(keys ^ (keys >> np.uint64(31)))
