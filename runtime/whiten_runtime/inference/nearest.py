"""Find the nearest rows of many, which arrive some at a time."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.inference.vectors import unit

_ROWS_AT_ONCE = 512
"""Number of queries whose similarities are held in memory at once."""


@dataclass(frozen=True)
class Nearest:
    """Holds the nearest rows of each query, the nearest first."""

    rows: NDArray[np.int64]  # numbers of the rows, from 0 on, int64 [n, k]
    cosines: NDArray[np.float32]  # their cosines, float32 [n, k]

    @classmethod
    def empty(cls, queries: int) -> "Nearest":
        """Return the nearest of no rows."""
        return cls(np.empty((queries, 0), np.int64), np.empty((queries, 0), np.float32))

    def add(self, queries: NDArray[np.float32], rows: NDArray[np.float32], start: int, top: int) -> "Nearest":
        """Return the nearest rows of those so far and of further ones; among equals the lower number comes first."""
        first, second = unit(queries), unit(rows)
        parts = [
            self._slice(begin)._merge(first[begin : begin + _ROWS_AT_ONCE] @ second.T, start, top)
            for begin in range(0, len(first), _ROWS_AT_ONCE)
        ]
        if not parts:
            return self
        return Nearest(np.concatenate([part.rows for part in parts]), np.concatenate([part.cosines for part in parts]))

    def _slice(self, begin: int) -> "Nearest":
        end = begin + _ROWS_AT_ONCE
        return Nearest(self.rows[begin:end], self.cosines[begin:end])

    def _merge(self, similarities: NDArray[np.float32], start: int, top: int) -> "Nearest":
        numbers = np.broadcast_to(np.arange(start, start + similarities.shape[1]), similarities.shape)
        rows = np.concatenate([self.rows, numbers], axis=1)
        cosines = np.concatenate([self.cosines, similarities], axis=1)
        if top < cosines.shape[1]:
            rows, cosines = _taken(rows, cosines, np.argpartition(-cosines, top - 1, axis=1)[:, :top])
        return Nearest(*_taken(rows, cosines, np.lexsort((rows, -cosines), axis=1)))


def _taken(
    rows: NDArray[np.int64], cosines: NDArray[np.float32], order: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(cosines, order, axis=1)
