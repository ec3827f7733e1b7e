"""List the combinations of layers that a sweep scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations

Combination = tuple[int, ...]


@dataclass(frozen=True)
class SearchLimits:
    """Says how many combinations are scored.

    Attributes:
        exhaustive: largest number of layers of which all combinations are scored: 4,095 of them.
        beam: number of combinations of each size that are extended, for each kind of whitening.
    """

    exhaustive: int = 12
    beam: int = 8


LIMITS = SearchLimits()
"""Limits of a sweep, unless others are given."""


def search_layers(layers: Sequence[int], exhaustive: int = LIMITS.exhaustive) -> tuple[int, ...]:
    """Return the layers whose combinations are searched: all, or without layer 0 if that makes them few enough."""
    blocks = tuple(layer for layer in layers if layer != 0)
    return blocks if len(layers) > exhaustive >= len(blocks) else tuple(layers)


def singles_and_pairs(layers: Sequence[int]) -> list[Combination]:
    """Return every single layer and every pair of layers."""
    return sorted(chain(combinations(layers, 1), combinations(layers, min(2, len(layers)))))


def all_combinations(layers: Sequence[int]) -> list[Combination]:
    """Return every combination of every size, sorted, so that those with the same first layers are neighbours."""
    return sorted(chain.from_iterable(combinations(layers, size) for size in range(1, len(layers) + 1)))


def extended(best: Sequence[Combination], layers: Sequence[int]) -> list[Combination]:
    """Return each combination extended by each further layer."""
    return sorted({tuple(sorted({*found, layer})) for found in best for layer in layers if layer not in found})
