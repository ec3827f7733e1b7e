"""Search codes by cosine: in float32 block by block, or among candidates by signs; the nearest again in float64."""

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.inference.nearest import Nearest
from whiten_whitening.codes.coded import Codes
from whiten_whitening.codes.layout import Layout, blocks
from whiten_whitening.codes.packing import Bytes, pack, sign_words
from whiten_whitening.moments import Float64Array

_ROWS_AT_ONCE = 1024
"""Codes that are decoded at a time: their float32 coordinates stay in the processor's cache."""

_QUERIES_AT_ONCE = 256
_SIGNS_AT_ONCE = 1 << 13
"""Codes whose signs are compared at a time."""

_ROUNDING = 2.0**-22
"""Error of a float32 cosine for each coordinate, at most."""

Rows = NDArray[np.int64]


class Best:
    """Keeps the nearest rows of one query, with cosines in float64."""

    def __init__(self, query: NDArray[np.float32], k: int) -> None:
        self._query = _unit(query[None].astype(np.float64))[0]
        self._k = k
        self.rows: Rows = np.empty(0, np.int64)
        self.cosines: Float64Array = np.empty(0)

    @property
    def worst(self) -> float:
        """Return the cosine that further rows must exceed."""
        return float(self.cosines[-1]) if len(self.rows) == self._k else -np.inf

    def add(self, rows: Rows, decoded: NDArray[np.float32]) -> None:
        """Add rows, ascending, by their decoded vectors, [n, dims]."""
        cosines = (_unit(decoded.astype(np.float64)) * self._query).sum(axis=1)
        rows, cosines = np.concatenate([self.rows, rows]), np.concatenate([self.cosines, cosines])
        order = np.lexsort((rows, -cosines))[: self._k]
        self.rows, self.cosines = rows[order], cosines[order]


def find_nearest(
    layout: Layout, queries: NDArray[np.float32], codes: Bytes, k: int, candidates: int | None, kept: Codes | None
) -> Nearest:
    """Find the nearest codes of each query; see `Coder.search`.

    Args:
        layout: layout of the codes.
        queries: coordinates of the queries, [q, dims].
        codes: the codes, [n, bytes].
        k: number of codes to find.
        candidates: number of codes to compare; None for all.
        kept: object that keeps norms and signs for the next call; None to forget them.
    """
    k = min(k, len(codes))
    if not k or not len(queries):
        return Nearest(np.empty((len(queries), k), np.int64), np.empty((len(queries), k), np.float32))
    best = [Best(query, k) for query in queries]
    if candidates is not None and candidates < len(codes):
        _among_candidates(layout, queries, codes, candidates, kept, best)
    else:
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            part = slice(start, start + _QUERIES_AT_ONCE)
            _among_all(layout, queries[part], codes, k, kept, best[part])
    return Nearest(
        np.stack([found.rows for found in best]), np.stack([found.cosines for found in best]).astype(np.float32)
    )


def norms(layout: Layout, codes: Bytes) -> NDArray[np.float32]:
    """Return the norms of the decoded vectors without the scale of 8-bit codes, float32 [n]; 1 for those of 0."""
    weights = layout.weights()
    found = [_lengths(coordinates, weights) for _, _, coordinates in blocks(layout, codes, _ROWS_AT_ONCE)]
    return np.concatenate([np.empty(0, np.float32), *found])


def _among_all(
    layout: Layout, queries: NDArray[np.float32], codes: Bytes, k: int, kept: Codes | None, best: list[Best]
) -> None:
    """Compare queries with all codes."""
    weights, margin = layout.weights(), layout.dims * _ROUNDING
    columns = np.zeros((layout.padded, len(queries)), np.float32)
    columns[: layout.dims] = _unit(queries).T
    columns *= weights[:, None]
    known = kept.keep("norms", lambda: norms(layout, codes)) if kept is not None else None
    for start, block, coordinates in blocks(layout, codes, _ROWS_AT_ONCE):
        products = coordinates @ columns
        lengths = _lengths(coordinates, weights) if known is None else known[start : start + len(block)]
        cosines = products.T / lengths
        bounds = np.asarray([found.worst for found in best], np.float32)
        if len(block) > k and np.isneginf(bounds).any():
            bounds = np.maximum(bounds, np.partition(cosines, -k, axis=1)[:, -k])
        queried, rows = np.nonzero(cosines >= (bounds - np.float32(margin))[:, None])
        ends = np.searchsorted(queried, np.arange(len(best) + 1))
        for query in np.unique(queried):
            near = rows[ends[query] : ends[query + 1]]
            best[query].add(start + near, layout.decode(block[near]))


def _among_candidates(
    layout: Layout,
    queries: NDArray[np.float32],
    codes: Bytes,
    candidates: int,
    kept: Codes | None,
    best: list[Best],
) -> None:
    """Compare each query with the codes that have the most signs in common with it."""
    signs = kept.keep("signs", lambda: layout.signs(codes)) if kept is not None else layout.signs(codes)
    words = sign_words(pack((queries >= 0).astype(np.uint8), 1), 1, layout.dims)
    for query, found in enumerate(best):
        rows = _fewest_differences(signs, words[:, query], candidates)
        found.add(rows, layout.decode(codes[rows]))


def _fewest_differences(signs: NDArray[np.uint64], query: NDArray[np.uint64], count: int) -> Rows:
    """Return the rows whose signs differ least from those of a query, ascending; among equals, the lower rows."""
    distances: NDArray[np.unsignedinteger] = np.zeros(signs.shape[1], np.uint8 if 64 * len(signs) < 256 else np.uint16)
    for start in range(0, len(distances), _SIGNS_AT_ONCE):
        part = distances[start : start + _SIGNS_AT_ONCE]
        for own, word in zip(signs, query, strict=True):
            part += ones(own[start : start + _SIGNS_AT_ONCE] ^ word)
    totals = np.cumsum(np.bincount(distances))
    bound = int(np.searchsorted(totals, count))
    nearer = np.flatnonzero(distances < bound)
    equal = np.flatnonzero(distances == bound)[: count - len(nearer)]
    return np.sort(np.concatenate([nearer, equal])).astype(np.int64)


def _ones_by_table(words: NDArray[np.uint64]) -> Bytes:
    """Return the number of ones of each word, for versions of numpy that have no function for it."""
    table = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
    return np.asarray(table[words.view(np.uint8)].reshape(*words.shape, 8).sum(axis=-1, dtype=np.uint8))


ones = getattr(np, "bitwise_count", _ones_by_table)
"""Return the number of ones of each word, uint8."""


def _lengths(coordinates: NDArray[np.float32], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the norms of decoded vectors, 1 for those of 0; overwrites the coordinates."""
    lengths = np.sqrt(np.square(coordinates, out=coordinates) @ np.square(weights))
    return np.where(lengths > 0, lengths, np.float32(1))


def _unit(rows: NDArray[np.floating]) -> NDArray[np.floating]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), rows.dtype)
