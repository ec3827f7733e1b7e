"""Which combinations of layers are looked at."""

from collections.abc import Sequence
from itertools import chain, combinations

EXHAUSTIVE = 12
"""Layers up to which all combinations are scored: 4,095 of them."""

Combination = tuple[int, ...]


def search_layers(layers: Sequence[int]) -> tuple[int, ...]:
    """Layers of which all combinations are scored: all of them, without layer 0 if that makes them few enough."""
    blocks = tuple(layer for layer in layers if layer != 0)
    return blocks if len(layers) > EXHAUSTIVE >= len(blocks) else tuple(layers)


def singles_and_pairs(layers: Sequence[int]) -> list[Combination]:
    """Every layer alone, and every two of them."""
    return sorted(chain(combinations(layers, 1), combinations(layers, min(2, len(layers)))))


def all_combinations(layers: Sequence[int]) -> list[Combination]:
    """Every combination, of every size, such that those with the same beginning stand together."""
    return sorted(chain.from_iterable(combinations(layers, size) for size in range(1, len(layers) + 1)))


def extended(best: Sequence[Combination], layers: Sequence[int]) -> list[Combination]:
    """Each combination with one more layer."""
    return sorted({tuple(sorted({*found, layer})) for found in best for layer in layers if layer not in found})
