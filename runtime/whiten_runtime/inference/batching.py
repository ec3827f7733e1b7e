"""Which texts share a run, and the arrays a run takes. Pure functions over token lengths."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from whiten_runtime.ort.session import Tuning

TOKEN_BUDGET = 256
"""Padded tokens at most of a run that has one thread: enough to keep it busy, few enough to keep memory small."""

ALONE_TOKEN_BUDGET = 1024
"""The same of a run that several threads share."""

GPU_TOKEN_BUDGET = Tuning.gpu_token_budget
"""Padded tokens at most of a run on a GPU."""

GPU_WORKERS = 2
"""Runs side by side on a GPU: while one copies and pads, the other computes. Not measured on one yet."""

WINDOW = 4096
"""Texts that are tokenised and sorted together: bounds the memory that they and their tokens take."""

GPU_FIRST_WINDOW = 512
"""Texts that are tokenised before a GPU starts: it would wait longer for more. Not measured on one yet."""

WORKER_TOKENS = 48
"""Tokens from which a thread of its own is worth while: with fewer, all threads on one run are faster."""

_TOLERATED_PADDING = 1.25
"""Padded over real tokens up to which a small call is one run."""


@dataclass(frozen=True)
class Schedule:
    """How the texts of a call become runs.

    Attributes:
        workers: runs side by side at most.
        budget: padded tokens of a run at most, if it has more than one text; a quarter more where one run does for all.
        split: share a small call among the workers, each of which has one thread; a GPU is better given all of it at
            once.
        first_window: texts that are tokenised before the first run.
        worker_tokens: tokens of a call from which one more worker is used.
    """

    workers: int
    budget: int
    split: bool = True
    first_window: int = WINDOW
    worker_tokens: int = WORKER_TOKENS

    @classmethod
    def on_cpu(cls, threads: int, workers: int) -> "Schedule":
        """Runs with one thread each, or one run with all threads."""
        return cls(workers, TOKEN_BUDGET if workers == threads else ALONE_TOKEN_BUDGET)

    @classmethod
    def on_gpu(cls, budget: int = GPU_TOKEN_BUDGET) -> "Schedule":
        """Return a schedule of large runs, of which the next one waits while one computes."""
        return cls(GPU_WORKERS, budget, split=False, first_window=GPU_FIRST_WINDOW)

    def plan(self, lengths: Sequence[int], max_texts: int | None = None) -> tuple[list[NDArray[np.intp]], int]:
        """Index arrays that partition the texts, as `plan_batches` has them, and how many should run side by side.

        Args:
            lengths: tokens of each text, shape [n].
            max_texts: texts per run, or None for no limit.
        """
        workers = workers_for(lengths, self.workers, self.worker_tokens) if self.split else 1
        groups = plan_batches(lengths, token_budget(lengths, workers, self.budget), max_texts)
        return groups, min(workers if self.split else self.workers, len(groups))


def workers_for(lengths: Sequence[int], workers: int, worker_tokens: int = WORKER_TOKENS) -> int:
    """Runs that should go on side by side for texts of these lengths, where so many can."""
    return max(1, min(workers, sum(lengths) // worker_tokens))


def token_budget(lengths: Sequence[int], workers: int, most: int = TOKEN_BUDGET) -> int:
    """Padded tokens per run: one run for a small call, else runs that keep all workers busy until the end.

    Args:
        lengths: tokens of each text.
        workers: runs that go on side by side.
        most: what a run may have.
    """
    total = sum(max(length, 1) for length in lengths)
    rounds = max(1, math.ceil(total / (workers * most)))
    if workers == rounds == 1:
        return max(1, math.floor(total * _TOLERATED_PADDING))
    return math.ceil(total / (workers * rounds))


def plan_batches(
    lengths: Sequence[int] | NDArray[np.intp],
    budget: int = TOKEN_BUDGET,
    max_texts: int | None = None,
) -> list[NDArray[np.intp]]:
    """Group texts of like length so that little padding is computed.

    Texts are taken longest first, and a group is closed when one more text would exceed `budget` padded
    tokens or `max_texts` texts. A text longer than the budget is a group of its own.

    Args:
        lengths: tokens of each text, shape [n].
        budget: padded tokens per group (rows times the longest text).
        max_texts: texts per group, or None for no limit.

    Returns:
        Index arrays that partition range(n).
    """
    if len(lengths) == 1:
        return [np.zeros(1, np.intp)]
    tokens = np.maximum(np.asarray(lengths, dtype=np.intp), 1)
    order = np.argsort(-tokens, kind="stable").astype(np.intp)
    groups = []
    start = 0
    while start < len(order):
        rows = max(1, budget // int(tokens[order[start]]))
        if max_texts is not None:
            rows = min(rows, max_texts)
        groups.append(order[start : start + rows])
        start += rows
    return groups


def pad_batch(ids: Sequence[Sequence[int]], pad_token_id: int, least: int = 1) -> dict[str, NDArray[np.int64]]:
    """Right-pad token ids into the two inputs of the graph.

    Args:
        ids: of each text.
        pad_token_id: what pads them.
        least: tokens to pad to, if no text has more.

    Returns:
        `input_ids` and `attention_mask`, each int64 [batch_size, sequence_length]; a batch in which no text has a
        token gets one masked column, because the graph needs at least one.
    """
    if len(ids) == 1 and len(ids[0]) >= least:  # a text that comes alone should not wait
        alone = np.asarray(ids, np.int64)
        return {"input_ids": alone, "attention_mask": np.ones_like(alone)}
    lengths = np.fromiter(map(len, ids), np.intp, len(ids))
    width = max(int(lengths.max(initial=0)), least)
    mask = np.arange(width) < lengths[:, None]
    input_ids = np.full((len(ids), width), pad_token_id, dtype=np.int64)
    input_ids[mask] = np.fromiter(chain.from_iterable(ids), np.int64, int(lengths.sum()))
    return {"input_ids": input_ids, "attention_mask": mask.astype(np.int64)}
