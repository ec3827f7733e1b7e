"""Group waiting texts into batches, so that padding and the batches themselves cost as little as possible."""

from collections.abc import Sequence
from math import inf

_FIXED = 16
"""Padded tokens that take as long as what a batch costs besides its tokens, at least. all-MiniLM-L6-v2 in int8: 14."""

_FIXED_OF_BUDGET = 16
"""Part of the budget that a batch costs where that is more: budgets are larger where batches cost more, as on a GPU."""

_HOPELESS = 4
"""Padding of a batch, in fixed costs, beyond which no larger batch is tried."""


def grouped(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Partition texts into batches of like length at the least cost: padded tokens, and a fixed cost for each batch.

    `plan_batches` of the runtime fills each batch up to the budget, which is best for thousands of texts. Of a few
    dozen, which are often all that wait, a full batch pads more than another batch costs.

    Args:
        lengths: number of tokens of each text, at least 1.
        budget: number of padded tokens of a batch at most; a longer text is a batch on its own.

    Returns:
        Lists of indices that partition range(n), the longest texts first.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    sizes = [lengths[index] for index in order]
    begins = _cuts(sizes, budget, max(_FIXED, budget // _FIXED_OF_BUDGET))
    groups: list[list[int]] = []
    end = len(order)
    while end:
        groups.append(order[begins[end] : end])
        end = begins[end]
    return groups[::-1]


def _cuts(sizes: list[int], budget: int, fixed: int) -> list[int]:
    """Return for each number of leading texts where the last batch of the cheapest partition of them begins.

    Batches end where the length changes, or where they are full.

    Args:
        sizes: lengths, the longest first.
        budget: number of padded tokens of a batch at most.
        fixed: cost of a batch besides its tokens.
    """
    count = len(sizes)
    changes = [place for place in range(1, count) if sizes[place] != sizes[place - 1]] + [count]
    costs, begins = [0.0] + [inf] * count, [0] * (count + 1)
    after = 0  # index of the first change behind the batch's first text
    for begin, width in enumerate(sizes):
        if changes[after] <= begin:
            after += 1
        if costs[begin] == inf:
            continue
        full = min(count, begin + max(1, budget // width))
        padding, end, place = 0, begin, after
        while end < full and padding <= _HOPELESS * fixed:
            start, end = end, min(changes[place], full)
            padding += (end - start) * (width - sizes[start])
            place += 1
            cost = costs[begin] + (end - begin) * width + fixed
            if cost < costs[end]:
                costs[end], begins[end] = cost, begin
    return begins
