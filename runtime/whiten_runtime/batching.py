"""Which texts share a run, and the arrays a run takes. Pure functions over token lengths."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DEFAULT_TOKEN_BUDGET = 1024
"""Padded tokens per run: small enough to stay in cache, large enough to keep the matrix kernels busy."""


def plan_batches(
    lengths: Sequence[int] | NDArray[np.intp],
    token_budget: int = DEFAULT_TOKEN_BUDGET,
    max_texts: int | None = None,
) -> list[NDArray[np.intp]]:
    """Group texts of like length so that little padding is computed.

    Texts are taken longest first, and a group is closed when one more text would exceed `token_budget` padded
    tokens or `max_texts` texts. A text longer than the budget is a group of its own.

    Args:
        lengths: tokens of each text, shape [n].
        token_budget: padded tokens per group (rows times the longest text).
        max_texts: texts per group, or None for no limit.

    Returns:
        Index arrays that partition range(n).
    """
    tokens = np.maximum(np.asarray(lengths, dtype=np.intp), 1)
    order = np.argsort(-tokens, kind="stable").astype(np.intp)
    groups = []
    start = 0
    while start < len(order):
        rows = max(1, token_budget // int(tokens[order[start]]))
        if max_texts is not None:
            rows = min(rows, max_texts)
        groups.append(order[start : start + rows])
        start += rows
    return groups


def pad_batch(ids: Sequence[Sequence[int]], pad_token_id: int) -> dict[str, NDArray[np.int64]]:
    """Right-pad token ids into the two inputs of the graph.

    Returns:
        `input_ids` and `attention_mask`, each int64 [batch_size, sequence_length]; a batch in which no text has a
        token gets one masked column, because the graph needs at least one.
    """
    lengths = np.fromiter((len(row) for row in ids), dtype=np.intp, count=len(ids))
    width = max(int(lengths.max(initial=0)), 1)
    mask = np.arange(width) < lengths[:, None]
    input_ids = np.full((len(ids), width), pad_token_id, dtype=np.int64)
    input_ids[mask] = np.concatenate([np.asarray(row, dtype=np.int64) for row in ids])
    return {"input_ids": input_ids, "attention_mask": mask.astype(np.int64)}
