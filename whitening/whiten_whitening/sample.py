"""Draw a random sample of a stream of vectors; it does not depend on the windows of the stream."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SAMPLE_SIZE = 4096

Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class Sample:
    """Holds the vectors with the smallest keys, at most `SAMPLE_SIZE`; since keys are hashes, the sample is random.

    Attributes:
        keys: keys of the vectors, ascending, [m].
        vectors: vectors of the sample, float32 [m, d].
    """

    keys: Keys
    vectors: NDArray[np.float32]

    @classmethod
    def empty(cls, width: int) -> "Sample":
        """Return a sample of no vectors."""
        return cls(np.empty(0, np.uint64), np.empty((0, width), np.float32))

    def add(self, keys: Keys, vectors: NDArray[np.float32]) -> "Sample":
        """Return the sample of the earlier vectors and these."""
        if len(self.keys) == SAMPLE_SIZE:
            smaller = keys < self.keys[-1]
            keys, vectors = keys[smaller], vectors[smaller]
        if not len(keys):
            return self
        joined = np.concatenate([self.keys, keys])
        order = np.argsort(joined, kind="stable")[:SAMPLE_SIZE]
        return Sample(joined[order], np.concatenate([self.vectors, vectors])[order])


def text_keys(texts: Iterable[str]) -> Keys:
    """Return the keys of texts: 8 bytes of each text's hash."""
    digests = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def row_keys(start: int, count: int) -> Keys:
    """Return the keys of rows `start` to `start + count`: SplitMix64 of their numbers (Steele et al., 2014)."""
    with np.errstate(over="ignore"):
        keys = (np.arange(start + 1, start + count + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(keys ^ (keys >> np.uint64(31)))
